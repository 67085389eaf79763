package denial

import (
	"bytes"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
)

func readSchema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	s, err := jsonschema.NewCompiler().Compile("../../../schema/denial_event.schema.json")
	require.NoError(t, err)
	return s
}

// check returns why a line is not as it was published; nil: it is.
func check(published *jsonschema.Schema, line []byte) error {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(line))
	if err != nil {
		return err
	}
	return published.Validate(value)
}

func TestTheSchemaRejectsWhatNoLineMaySay(t *testing.T) {
	published := readSchema(t)
	const good = `{"event":"rate_limit_denial","version":1,"id":"00c0ffee00c0ffee-1","count":1,"answers":0,` +
		`"first":"2000-01-01T00:00:00.000000Z","last":"2000-01-01T00:00:00.000000Z","mode":"enforce","reason":"quota"}`
	require.NoError(t, check(published, []byte(good)), "the least line")
	for _, change := range []struct{ name, old, new string }{
		{"another event", "rate_limit_denial", "audit"},
		{"another version", `"version":1`, `"version":2`},
		{"no id", `"id":"00c0ffee00c0ffee-1",`, ``},
		{"a count of none", `"count":1`, `"count":0`},
		{"half a count", `"count":1`, `"count":1.5`},
		{"a count in words", `"count":1`, `"count":"one"`},
		{"a time of day", `2000-01-01T00:00:00.000000Z`, `00:00:00`},
		{"milliseconds", `00.000000Z`, `00.000Z`},
		{"an unknown mode", `"enforce"`, `"audit"`},
		{"an unknown reason", `"quota"`, `"counted"`},
		{"an unknown field", `"count"`, `"weather":"fine","count"`},
		{"an empty tenant", `"count"`, `"org":"","org_kind":"tenant","count"`},
		{"a tenant of no kind", `"count"`, `"org":"acme","count"`},
		{"a scope without its policy", `"count"`, `"scope":"tenant","count"`},
		{"a limit of nothing", `"count"`, `"limit":{"quantity":0,"window_seconds":1,"burst":1},"count"`},
		{"a limit without a window", `"count"`, `"limit":{"quantity":1,"burst":1},"count"`},
		{"a list with one name twice", `"count"`, `"mixed":["user","user"],"count"`},
		{
			"more ids than a line has", `"count"`,
			`"request_id":"a","more_request_ids":["` + strings.Repeat(`a","`, 9) + `a"],"count"`,
		},
		{"more ids without the first", `"count"`, `"more_request_ids":["a"],"count"`},
		{"a row of no policy", `"count"`, `"policy_id":7,"count"`},
		{"a row for a policy of the config", `"count"`, `"policy":"a","policy_id":0,"count"`},
		{"an empty list", `"count"`, `"truncated":[],"count"`},
	} {
		bad := strings.Replace(good, change.old, change.new, 1)
		if err := check(published, []byte(bad)); bad == good || err == nil {
			t.Errorf("%s is accepted: %s", change.name, bad)
		}
	}
}
