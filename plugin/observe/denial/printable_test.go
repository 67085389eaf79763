package denial

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
)

func TestALineHasNoCharacterOfANameThatATerminalObeys(t *testing.T) {
	t.Parallel()
	const org = "\u202eemca"
	d := new(decision.Decision)
	d.Reset()
	d.Identity.Tenant = identity.Name{Kind: identity.Tenant, ID: org}
	d.Deny(decision.Banned)
	line := written(t, complete, d)[0]
	var got struct{ Org string }
	if err := json.Unmarshal(line.Text, &got); err != nil || got.Org != org || bytes.ContainsRune(line.Text, '\u202e') {
		t.Errorf("%s (%v): want %q, escaped", line.Text, err, org)
	}
}
