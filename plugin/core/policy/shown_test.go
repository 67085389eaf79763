package policy_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestAnExplanationShowsEveryFieldOfAPolicy(t *testing.T) {
	policytest.WantShown(t, "Describe of bound.go", map[string]string{
		"soft_threshold_pct": "policy get shows when a limit warns",
		"hard_threshold_pct": "policy get shows how far above the limit requests are admitted",
		"soft_only":          "policy get shows that a limit never denies",
		"public_note":        "it is for the tenant",
	}, func(p schema.Policy) string {
		plan, id := policytest.Resolve(t, p)
		text, err := json.Marshal(plan.Explain(&id, 1000))
		require.NoError(t, err)
		return string(text)
	})
}
