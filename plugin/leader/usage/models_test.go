package usage

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
)

func TestCallsAddUpByDayTenantAndModel(t *testing.T) {
	w, p := newWorld(t), newProcess(1)
	report := func(age time.Duration, all ...usage.ModelCalls) {
		b := p.next()
		b.Models = all
		w.report(p.node, b, age)
	}
	read := func() (found []string) {
		rows, err := w.pool.Query(t.Context(), `SELECT (timezone('UTC', now())::date - day) || ' ' || n.name || ' ' || model
				|| format(' %s %s %s %s', calls, prompt_tokens, completion_tokens, micro_usd) AS text
			FROM rate_limiter.usage_models JOIN rate_limiter.usage_names n ON n.id = tenant ORDER BY day DESC, n.name, model`)
		require.NoError(t, err)
		for rows.Next() {
			var text string
			require.NoError(t, rows.Scan(&text))
			found = append(found, text)
		}
		return found
	}
	report(0, usage.ModelCalls{Tenant: "", Model: "gpt-4o", Calls: 1, MicroUSD: 5},
		usage.ModelCalls{Tenant: "acme", Model: "gpt-4o", Calls: 2, PromptTokens: 30, CompletionTokens: 4, MicroUSD: maxSum})
	report(0, usage.ModelCalls{Tenant: "acme", Model: "gpt-4o", Calls: 1, PromptTokens: 1, MicroUSD: 9})
	report(24*time.Hour, usage.ModelCalls{Tenant: "acme", Model: "gpt-4o", Calls: 7})
	w.lead()
	report(0, usage.ModelCalls{Tenant: "acme", Model: "gpt-4o", Calls: 1}, usage.ModelCalls{Tenant: "acme", Calls: 1})
	report(4*24*time.Hour, usage.ModelCalls{Tenant: "acme", Model: "old", Calls: 1}) // too late, as rows
	w.lead()
	assert.Equal(t, []string{
		"0  gpt-4o 1 0 0 5", "0 acme  1 0 0 0", fmt.Sprint("0 acme gpt-4o 4 31 4 ", maxSum), "1 acme gpt-4o 7 0 0 0",
	}, read())
	w.exec(`UPDATE rate_limiter.usage_models SET day = day - 1100 WHERE model = ''`)
	w.lead()
	assert.Len(t, read(), 3, "days are kept for 3 years")
}

func TestATenantHasABoundedNumberOfModelsOnADay(t *testing.T) {
	w, p := newWorld(t), newProcess(1)
	for n := range 4 {
		b := p.next()
		for i := range usage.MaxModels / 8 {
			b.Models = append(b.Models, usage.ModelCalls{Tenant: "acme", Model: fmt.Sprint(n, "-", i), Calls: 1})
		}
		b.Models = append(b.Models, usage.ModelCalls{Tenant: "acme", Model: "0-1", Calls: 10},
			usage.ModelCalls{Tenant: "globex", Model: "0-1", Calls: 1})
		w.report(p.node, b, 0)
		w.lead()
	}
	for sql, want := range map[string]int64{
		`SELECT count(*) FROM rate_limiter.usage_models`:                                  dayModels + 2,
		`SELECT sum(calls)::bigint FROM rate_limiter.usage_models`:                        4 * (usage.MaxModels/8 + 11),
		`SELECT calls FROM rate_limiter.usage_models WHERE model = '(other)'`:             usage.MaxModels/2 - dayModels,
		`SELECT max(calls) FROM rate_limiter.usage_models WHERE model = '0-1'`:            41,
		`SELECT count(*) FROM rate_limiter.usage_names WHERE name LIKE '%-%' OR id > 1e5`: 0,
	} {
		assert.Equal(t, want, w.number(sql), sql)
	}
}

func TestANameHasTheUnitThatItsPolicyHadLast(t *testing.T) {
	w, p := newWorld(t), newProcess(1)
	row := func(policy, unit string) usage.Row {
		return usage.Row{
			Key:    usage.Key{Tenant: "acme", Policy: policy},
			Counts: usage.Counts{Cost: 1, Remaining: usage.NoRemaining, Unit: unit},
		}
	}
	const usd = `SELECT count(*) FROM rate_limiter.usage_names WHERE unit = 'usd' AND name IN ('month//', 'daily//')`
	for i, c := range []struct {
		rows []usage.Row
		want int64
	}{
		{[]usage.Row{row("daily//", ""), row("month//", "usd")}, 1},
		{[]usage.Row{row("daily//", "")}, 1},
		{[]usage.Row{row("daily//", ""), row("month//", "")}, 0},
	} {
		w.report(p.node, p.next(c.rows...), 0)
		w.lead()
		assert.Equal(t, c.want, w.number(usd), "step %d", i)
	}
}
