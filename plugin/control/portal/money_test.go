package portal

import (
	"net/http"
	"testing"
	"time"

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

func TestTheConsoleShowsUsageOfMoneyInDollars(t *testing.T) {
	t.Parallel()
	w := open(t, func(o *Options) { o.Now = func() time.Time { return noon } })
	b := w.signedIn(viewerSecret)
	w.api.answer("GET /v1/orgs/acme/ratelimit/policies", http.StatusOK, `{"limits":[{"policy":"llm-day","scope":"tenant",
		"limit":2000000,"unit":"usd","window_size":86400,"algorithm":"fixed_window","settles":true}]}`)
	w.api.answer("GET /v1/orgs/acme/ratelimit/usage/history", http.StatusOK, `{"from":"2026-11-22T11:00:00Z",
		"to":"2026-11-22T12:00:00Z","items":[{"at":"2026-11-22T11:00:00Z","admitted":5,"cost":500042,"unit":"usd"}]}`)
	w.want(b.get("/portal/tenants/acme?policy=llm-day"), http.StatusOK, "limit llm-day 2.00 USD<", `data-unit="usd"`,
		"the highest is 0.500042 USD", "25 % of the limit", "shadow denied, 0.500042 USD. The")
	w.api.answer("GET /v1/ratelimit/usage/top", http.StatusOK,
		`{"by":"cost","items":[{"org_id":"acme","cost":4200,"unit":"usd"}]}`)
	w.want(b.get("/portal/top?by=cost&policy=llm-day"), http.StatusOK, ">0.0042 USD<")
	w.api.answer("GET /v1/ratelimit/usage/top", http.StatusOK, `{"by":"cost","items":[{"org_id":"acme","cost":4711}]}`)
	page := w.want(b.get("/portal/top?by=cost"), http.StatusOK, "name a policy")
	w.missing(page, "4711")
	w.missing(page, "4,711")
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
	w.want(b.get("/portal/org"), http.StatusOK, "20.00 USD per month", "4.9958 USD <small>left of 20.00 USD this month")
	w.want(b.get("/portal/org/usage"), http.StatusOK, "15.0042 USD of 20.00 USD")
}
