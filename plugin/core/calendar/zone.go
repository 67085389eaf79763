package calendar

import (
	"archive/zip"
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"sync"
	"time"
)

// The zone data is that of a Go release, whose update.bash names the version. make zones takes over another.

//go:embed zoneinfo.zip
var zoneArchive []byte

// DataVersion is the version of the zone data, as IANA names its releases: 2025c.
//
//go:embed zoneinfo.version
var DataVersion string

var zoneData = sync.OnceValue(func() *zip.Reader {
	data, err := zip.NewReader(bytes.NewReader(zoneArchive), int64(len(zoneArchive)))
	if err != nil {
		panic("calendar: read embedded zone data: " + err.Error())
	}
	return data
})

// zones holds the *time.Location of each zone that was loaded.
var zones sync.Map

// unset is the name of the data that stands for a zone that was not chosen.
const unset = "Factory"

// Location returns a zone of the embedded data by its IANA name, which has the case of the data. The error is a
// *FieldError.
func Location(name string) (*time.Location, error) {
	if known, ok := zones.Load(name); ok {
		return known.(*time.Location), nil
	}
	var data []byte // there is no zone without data
	if file, err := zoneData().Open(name); err == nil {
		data, _ = io.ReadAll(file)
	}
	location, err := time.LoadLocationFromTZData(name, data)
	if err != nil || name == unset {
		return nil, &FieldError{"time_zone", fmt.Sprintf(
			"unknown time zone %q: use an IANA name such as Europe/Berlin (zone data %s)", name, DataVersion)}
	}
	zones.Store(name, location)
	return location, nil
}
