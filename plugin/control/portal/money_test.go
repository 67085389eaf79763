package portal

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestLimitsInMoneyAreDescribedInDollars(t *testing.T) {
	const usd = schema.UnitUSD
	month := answers.Window{Period: "month", TimeZone: "UTC"}
	for want, got := range map[string]string{
		"20.00 USD per month (UTC), shared by all users of acme, by the calendar": limitWords(&answers.LimitInForce{
			Limit: 20_000_000, Window: month, Scope: "tenant", Algorithm: "fixed_window", Settles: true, Unit: usd,
		}, "acme"),
		"2.00 USD per day, shared by all users of acme, refilled evenly, at most 0.50 USD at once": limitWords(
			&answers.LimitInForce{
				Limit: 2_000_000, Burst: 500_000, Window: over(86400), Scope: "tenant", Algorithm: "token_bucket", Settles: true,
				Unit: usd,
			}, "acme"),
		"llm-month 50.00 USD": overrideWords(answers.OverrideInForce{
			Kind: "custom_limit", Target: "tenant", Policy: "llm-month", Limit: 50_000_000, Unit: usd,
		}),
		"+5.00 USD llm-month": overrideWords(answers.OverrideInForce{
			Kind: "topup", Target: "tenant", Policy: "llm-month", Amount: 5_000_000, Unit: usd,
		}),
		"20.00 USD per 31 days": denialWords(answers.Denial{
			Reason: "quota", Limit: new(int64(20_000_000)), Window: "31d", Denier: decision.Denier{Unit: usd},
		}),
		"llm-month 20.00 USD → 25.0001 USD per month (UTC)": changeWords(&answers.LimitChange{
			Policy: "llm-month", Before: answers.LimitNumbers{Limit: 20_000_000, Window: month, Burst: 20_000_000},
			After: answers.LimitNumbers{Limit: 25_000_100, Window: month, Burst: 25_000_100}, Unit: usd,
		}),
	} {
		assert.Equal(t, want, got)
	}
}

func TestThePagesOfATenantShowMoneyInDollars(t *testing.T) {
	t.Parallel()
	w := open(t)
	answersWith(w, "llm-month")
	const at = "/v1/orgs/acme/ratelimit"
	w.api.answer("GET "+at+"/policies", http.StatusOK, `{"tier":"gold","limits":[{"policy":"llm-month","scope":"tenant",
		"limit":20000000,"burst":20000000,"unit":"usd","period":"month","algorithm":"fixed_window","mode":"enforce",
		"settles":true}]}`)
	w.api.answer("GET "+at+"/usage", http.StatusOK, `{"items":[{"policy":"llm-month","of":"the org","scope":"tenant",
		"limit":20000000,"used":15004200,"remaining":4995800,"unit":"usd","period":"month","fraction":0.75}]}`)
	b := w.signedIn(acmeSecret)
	w.want(b.get("/portal/org"), http.StatusOK, "20.00 USD per month", "15.0042 USD of 20.00 USD this month",
		"4.9958 USD left")
	w.want(b.get("/portal/org/usage"), http.StatusOK, "15.0042 USD of 20.00 USD")
}
