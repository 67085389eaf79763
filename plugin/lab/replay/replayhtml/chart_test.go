package replayhtml

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestChartsAreXMLWithoutLinks(t *testing.T) {
	hostile := `"><script>alert(1)</script>&\x00`
	labels := []string{hostile, "globex"}
	all := []series{
		{Name: "admitted", Color: "#8fb3d9", Values: []float64{10, 20_000}},
		{Name: hostile, Color: "#d64545", Values: []float64{0, 3_000_000}},
	}
	for name, draw := range map[string]func() (string, error){
		"areas": func() (string, error) { s, err := areas(labels, all...); return string(s), err },
		"bars":  func() (string, error) { s, err := bars(labels, all...); return string(s), err },
	} {
		svg, err := draw()
		if err != nil || !strings.HasPrefix(svg, "<svg") {
			t.Fatalf("%s: %v: %.80s", name, err, svg)
		}
		decoder := xml.NewDecoder(strings.NewReader(svg))
		for {
			token, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if element, ok := token.(xml.StartElement); ok && (element.Name.Local == "script" || element.Name.Local == "image") {
				t.Errorf("%s: has an element %s", name, element.Name.Local)
			}
		}
	}
}
