package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestEveryCommandShowsALimitInMoneyInDollars(t *testing.T) {
	t.Parallel()
	deck := filepath.Join(t.TempDir(), "kong.yml")
	text := fmt.Sprintf(`_format_version: "3.0"
plugins:
- name: tenant-rate-limiting
  config:
    strategy: redis
    redis: {host: 127.0.0.1, port: %d}
    llm: {prices: [{model: "*", prompt: "15", completion: "75"}]}
    tiers:
    - name: gold
      limits:
      - {name: llm-month, scope: tenant, unit: usd, limit: 20000000, algorithm: fixed_window, period: month,
         settle: {sources: [{from: prices}], reserve: 4200}}
`, redistest.Single(t).Port)
	require.NoError(t, os.WriteFile(deck, []byte(text), 0o600))
	env := map[string]string{databaseVariable: pgtest.Shared(t).Database(t)}
	call := func(line ...string) string {
		t.Helper()
		var output bytes.Buffer
		o := operator{
			getenv: func(name string) string { return env[name] }, login: func() string { return "ann@laptop" },
			now: time.Now, stdin: strings.NewReader(""), stdout: screen{to: &output}, stderr: screen{to: &output},
		}
		require.Equal(t, 0, o.run(t.Context(), line), output.String())
		return output.String()
	}
	call("tenant", "set", "acme", "--tier", "gold", "--reason", "sold")
	spend(t, deck, identity.Identity{Tenant: identity.Name{Kind: identity.Tenant, ID: "acme"}}, 1)
	of := []string{"--config", deck, "--tenant", "acme"}
	topUp := append([]string{"topup", "--policy", "llm-month", "--amount", "5000000", "--reason", "launch"}, of...)
	for _, step := range []struct {
		line []string
		want []string
	}{
		{append([]string{"buckets", "show"}, of...), []string{
			"20.00 USD per month", "reserves 0.0042 USD, settles to prices", " 0.0042 USD  19.9958 USD ",
		}},
		{append(topUp, "--dry-run"), []string{"llm-month: 20.00 USD becomes 25.00 USD until"}},
		{topUp, []string{"in the plugin's config counts millionths of a US dollar: it allows 25.00 USD per month"}},
		{append([]string{"explain"}, of...), []string{"25.00 USD per month", "0.0042 USD", "5.00 USD"}},
	} {
		shown := call(step.line...)
		for _, want := range step.want {
			assert.Contains(t, shown, want, step.line)
		}
	}
	assert.Contains(t, call(append([]string{"buckets", "show", "-o", "json"}, of...)...), `"used": 4200,`)
}

func TestTablesShowAmountsInTheUnitOfTheirLimit(t *testing.T) {
	const usd = schema.UnitUSD
	amount := new(int64(4200))
	for _, shown := range []any{
		&answers.NearLimit{Limit: 20_000_000, Remaining: 4200, Unit: usd},
		&answers.BucketUsage{Limit: 20_000_000, Remaining: 4200, Unit: usd},
		&answers.Denial{Limit: new(int64(20_000_000)), Denier: decision.Denier{Cost: amount, Unit: usd}},
		&answers.LimitChange{
			Before: answers.LimitNumbers{Limit: 4200}, After: answers.LimitNumbers{Limit: 20_000_000}, Unit: usd,
		},
		&rows.QuotaNotice{Limit: 20_000_000, Used: 4200, Unit: usd},
		&rows.Policy{Policy: schema.Policy{Limit: schema.Limit{
			Limit: 20_000_000, Unit: usd, Settle: &schema.Settle{Reserve: 4200},
		}}},
	} {
		for _, list := range []any{shown, []any{shown}} {
			p := new(page)
			p.show(list)
			text := p.text.String()
			assert.Contains(t, text, "20.00 USD", "%T", shown)
			assert.Contains(t, text, "0.0042 USD", "%T", shown)
			assert.NotContains(t, strings.ToLower(text), "unit", "%T", shown)
		}
	}
	p := new(page)
	p.show([]any{
		map[string]any{"limit": 4200, "unit": usd, "others": []any{map[string]any{"limit": 77}}},
		map[string]any{"limit": 4200},
	})
	assert.Equal(t, "LIMIT       OTHERS\n0.0042 USD  limit 77\n4200        -\n", p.text.String())
}
