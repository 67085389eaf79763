package deckfile

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"
)

// parse returns the root value of a YAML document.
func parse(t *testing.T, text string) *yaml.Node {
	t.Helper()
	var document yaml.Node
	require.NoError(t, yaml.Unmarshal([]byte(text), &document))
	return document.Content[0]
}

func TestConfigsAreEncodedAsForKong(t *testing.T) {
	for text, want := range map[string]string{
		`{}`:                                    `{}`,
		`{a: 1, b: 0x10, c: 1e3, d: .5}`:        `{"a":1,"b":16,"c":1000,"d":0.5}`,
		`{a: yes, b: true, c: ~, d: "1"}`:       `{"a":"yes","b":true,"c":null,"d":"1"}`,
		`{a: .inf, b: 2020-01-01}`:              `{"a":".inf","b":"2020-01-01"}`,
		`{a: 9223372036854775808, b: 1_000}`:    `{"a":9223372036854775808,"b":1000}`,
		`[{a: [x, y]}, []]`:                     `[{"a":["x","y"]},[]]`,
		"a: &x {m: 1, n: 2}\nb: *x":             `{"a":{"m":1,"n":2},"b":{"m":1,"n":2}}`,
		"a: &x {m: 1, n: 2}\nb: {<<: *x, n: 3}": `{"a":{"m":1,"n":2},"b":{"n":3,"m":1}}`,
		"{a: 1, a: 2}":                          `{"a":1,"a":2}`,
	} {
		got, err := Encode(parse(t, text), NewWalk())
		if err != nil || string(got.JSON) != want {
			t.Errorf("%s: %s, %v; want %s", text, got.JSON, err, want)
		}
	}
	if got, err := Encode(nil, NewWalk()); err != nil || string(got.JSON) != "{}" {
		t.Errorf("no config: %s, %v", got.JSON, err)
	}
}

func TestEveryValueHasItsLine(t *testing.T) {
	got, err := Encode(parse(t, "a: 1\nb:\n- x: ${{ env \"DECK_X\" }}\n- y\n"), NewWalk())
	require.NoError(t, err)
	want := map[string]int{"": 1, "a": 1, "b": 2, "b[0]": 3, "b[0].x": 3, "b[1]": 4}
	if !reflect.DeepEqual(got.Lines, want) || got.Line("b[1].absent") != 4 {
		t.Errorf("lines %v, want %v", got.Lines, want)
	}
	if !reflect.DeepEqual(got.Templates, []string{"b[0].x"}) {
		t.Errorf("templates %v", got.Templates)
	}
}

func TestAliasesBeyondTheBoundsAreAnError(t *testing.T) {
	for name, text := range map[string]string{
		"an alias within itself": "a: &a [*a]",
		"many levels":            strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1),
	} {
		if _, err := Encode(parse(t, text), NewWalk()); err == nil || !strings.Contains(err.Error(), "too many values") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
