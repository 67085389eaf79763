package engine

import (
	"encoding/gob"
	"fmt"
	"io"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// stateFormat is the format of what Save writes. Raise it with each change of a field that is saved, or of its meaning:
// an upgrade then starts with empty counters.
const stateFormat = 3

// stateHeader is followed by the buckets and the reservations.
type stateHeader struct {
	Format int
	Now    limit.Micros // by the clock of the buckets
}

// Save writes the buckets of strategy local, and takes out their reservations, for another process. No request may be
// decided meanwhile.
func (e *Engine) Save(to io.Writer) error {
	out := gob.NewEncoder(to)
	if err := out.Encode(stateHeader{stateFormat, process.BucketClock.Now()}); err != nil {
		return err
	}
	if err := e.Stores.Save(out); err != nil {
		return err
	}
	return e.Reservations.Save(out)
}

// Load adds what the Save of another process has written, before the first request. With an error it adds nothing.
func (e *Engine) Load(from io.Reader) error {
	in, header := gob.NewDecoder(from), stateHeader{}
	switch err := in.Decode(&header); {
	case err != nil:
		return err
	case header.Format != stateFormat:
		return fmt.Errorf("it has format %d; this program reads format %d", header.Format, stateFormat)
	}
	addBuckets, err := e.Stores.Load(in)
	if err != nil {
		return err
	}
	local, _, err := e.Stores.Open(&schema.Config{Strategy: schema.StrategyLocal})
	if err != nil {
		return err
	}
	addReservations, err := e.Reservations.Load(in, local)
	if err != nil {
		return err
	}
	process.BucketClock.Set(header.Now) // the buckets do not step
	addBuckets()
	addReservations()
	return nil
}
