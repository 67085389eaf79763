package portal

import (
	"encoding/json"
	"slices"
	"testing"
)

func TestDiffsHaveEachFieldThatDiffers(t *testing.T) {
	for name, c := range map[string]struct {
		before, after string
		want          []fieldChange
	}{
		"a row is created": {"", `{"name":"daily","limit":1000}`, []fieldChange{
			{"limit", "", "1000", "added"}, {"name", "", "daily", "added"},
		}},
		"a row is deleted": {`{"name":"daily","tier":null}`, `null`, []fieldChange{{"name", "daily", "", "removed"}}},
		"fields of a row change": {
			`{"limit":9007199254740993,"mode":"shadow","settle":{"reserve":1},"a":true,"list":[1,"x"]}`,
			`{"limit":9007199254740992,"mode":"shadow","settle":{"reserve":2,"from":"y"},"a":true,"list":[1,"y"]}`,
			[]fieldChange{
				{"limit", "9007199254740993", "9007199254740992", "changed"},
				{"list", `[1,"x"]`, `[1,"y"]`, "changed"},
				{"settle.from", "", "y", "added"},
				{"settle.reserve", "1", "2", "changed"},
			},
		},
		"nothing changes": {`{"a":{"b":[{}]}}`, `{"a":{"b":[{}]}}`, nil},
	} {
		got, err := diffJSON(json.RawMessage(c.before), json.RawMessage(c.after))
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v (%v), want %+v", name, got, err, c.want)
		}
	}
}

func TestDiffsOfBrokenStatesAreErrors(t *testing.T) {
	for _, c := range [][2]string{{`{`, `{}`}, {`{}`, `[1,`}} {
		if got, err := diffJSON(json.RawMessage(c[0]), json.RawMessage(c[1])); err == nil {
			t.Errorf("%q: %v, want an error", c, got)
		}
	}
}
