package docpath

import (
	"strings"
	"testing"
)

func TestPathsAreSpelledAsAnAdminWritesThem(t *testing.T) {
	for got, want := range map[string]string{
		Member("", "mode"):                                 "mode",
		Member(Item(Member("", "tiers"), 1), "name"):       "tiers[1].name",
		Member("costs", "POST /search"):                    `costs["POST /search"]`,
		Member("costs", "a.b"):                             `costs["a.b"]`,
		Member("costs", ""):                                `costs[""]`,
		Join("plugins[0].config", "mode"):                  "plugins[0].config.mode",
		Join("plugins[0].config", ""):                      "plugins[0].config",
		Join("", "mode"):                                   "mode",
		Join("plugins[0].config", `["a b"]`):               `plugins[0].config["a b"]`,
		Shorten("abc"):                                     "abc",
		Member("", strings.Repeat("x", ShownBytes+1))[:10]: `["xxxxxxxx`,
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestAMissingPathHasThePlaceOfItsLongestPrefix(t *testing.T) {
	places := map[string]int{"": 1, "tiers": 2, "tiers[0]": 3, "tiers[0].limits": 4}
	for path, want := range map[string]int{
		"tiers[0].limits": 4, "tiers[0].limits[7].name": 4, "tiers[0].name": 3, "tiers[9]": 2,
		"mode": 1, "": 1, `["a.b[c"]`: 1,
	} {
		if got, ok := Find(places, path); !ok || got != want {
			t.Errorf("%s: %d, %t, want %d", path, got, ok, want)
		}
	}
	if _, ok := Find(nil, "a.b"); ok {
		t.Error("found in no places")
	}
}
