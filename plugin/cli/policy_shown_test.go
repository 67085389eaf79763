package cli

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestPolicyGetShowsEveryFieldOfAPolicy(t *testing.T) {
	policytest.WantShown(t, "limitText of policy.go", map[string]string{
		"public_note": "it is for the tenant; -o json shows it",
	}, func(p schema.Policy) string {
		var b bytes.Buffer
		out := new(page)
		policyList.add(out, rows.Policy{ID: 1, Policy: p})
		require.NoError(t, out.write(screen{to: &b}))
		return b.String()
	})
}
