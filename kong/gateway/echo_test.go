package gateway

import (
	"encoding/json"
	"testing"
)

// echoed holds the request that the built-in upstream saw.
type echoed struct {
	Method, Path, Query, Host string
	Headers                   map[string]string
}

// echo decodes the answer of the built-in upstream.
func (a answer) echo(t *testing.T) echoed {
	t.Helper()
	var e echoed
	if err := json.Unmarshal([]byte(a.body), &e); err != nil {
		t.Fatalf("%v in %s", err, a.body)
	}
	return e
}
