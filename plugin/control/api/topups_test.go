package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// periodic is a limit of 1000 in each period.
func periodic(name, scope, period string) schema.Limit {
	return schema.Limit{
		Name: name, Scope: scope, Limit: 1000, Algorithm: "fixed_window", Period: period, TimeZone: "Europe/Berlin",
	}
}

// selling returns a server whose config has limits with periods. Acme is of tier gold, and in Tokyo.
func selling(t *testing.T, edit ...func(*api.Options)) *world {
	t.Helper()
	config := schema.Config{
		DefaultTier: "gold", OnMissingUser: "skip",
		Tiers: []schema.Tier{
			{Name: "gold", Limits: []schema.Limit{
				periodic("monthly", "tenant", "month"), periodic("seats", "user", "day"), periodic("addresses", "ip", "day"),
				{Name: "rolling", Scope: "tenant", Limit: 10, WindowSize: 60},
				periodic("varied", "tenant", "month"),
			}},
			{Name: "silver", Limits: []schema.Limit{
				periodic("monthly", "tenant", "month"), periodic("varied", "tenant", "year"),
			}},
			{Name: "unlimited"},
		},
		Global: schema.Global{Limits: []schema.Limit{periodic("all", "global", "month")}},
	}.WithDefaults()
	acme := schema.Tenant{ID: "acme", Tier: "gold", TimeZone: "Asia/Tokyo"}
	w := open(t, append([]func(*api.Options){func(o *api.Options) {
		o.Decider = deciderOf(t, config, shelf{memory.New(memory.Options{})}, policy.Rows{Tenants: []schema.Tenant{acme}})
		o.Decider.Now = func() limit.Micros { return limit.Micros(time.Now().UnixMicro()) }
	}}, edit...)...)
	for _, tenant := range []schema.Tenant{acme, {ID: "free", Tier: "unlimited"}, {ID: "berlin", Tier: "gold"}} {
		_, _, err := w.store.SetTenant(t.Context(), rows.Change{Actor: "ann", Reason: "sold"}, rows.Tenant{Tenant: tenant})
		require.NoError(t, err)
	}
	return w
}

// endOfMonth is when the present month ends in a zone.
func endOfMonth(t *testing.T, zone string) time.Time {
	t.Helper()
	in, err := time.LoadLocation(zone)
	require.NoError(t, err)
	year, month, _ := time.Now().In(in).Date()
	return time.Date(year, month+1, 1, 0, 0, 0, 0, in).UTC()
}

const topUpBody = `{"kind":"topup","policy":"monthly","amount":500,"reason":"launch"}`

func TestATopUpEndsWithTheMonthOfItsTenantAndCountsOnceForAKey(t *testing.T) {
	t.Parallel()
	w := selling(t)
	first := w.want(w.as("POST", overrides, topUpBody, "Idempotency-Key", "k"), http.StatusCreated)
	o := read[overrideWritten](w, first).Override
	assert.Equal(t, endOfMonth(t, "Asia/Tokyo"), o.ExpiresAt.UTC())
	assert.Equal(t, []any{schema.KindTopUp, int64(500), "in_force", false}, []any{o.Kind, o.Amount, o.State, o.Permanent})
	again := w.want(w.as("POST", overrides, topUpBody, "Idempotency-Key", "k"), http.StatusCreated)
	assert.Equal(t, "true", again.Header().Get("Idempotent-Replayed"))
	assert.Equal(t, o, read[overrideWritten](w, again).Override)
	another := strings.Replace(topUpBody, "500", "7", 1)
	w.want(w.as("POST", overrides, another, "Idempotency-Key", "k"), http.StatusUnprocessableEntity)
	w.want(w.as("POST", overrides, topUpBody), http.StatusCreated)
	list := read[answers.Page[api.Override]](w, w.as("GET", overrides+"?kind=topup", "")).Items
	require.Len(t, list, 2, "a top-up without a key adds to the one before")
	berlin := strings.Replace(overrides, "acme", "berlin", 1)
	made := w.want(w.as("POST", berlin, topUpBody), http.StatusCreated)
	assert.Equal(t, endOfMonth(t, "Europe/Berlin"), read[overrideWritten](w, made).Override.ExpiresAt.UTC())

	at := fmt.Sprint(overrides, "/", o.ID)
	change := w.as("PUT", at, strings.Replace(topUpBody, "500", "501", 1), "If-Match", "*")
	w.wantFaults(change, "body.kind")
	w.want(w.as("DELETE", at+"?reason=over", ""), http.StatusOK)
	audit := w.as("GET", "/v1/ratelimit/audit", "").Body.String()
	assert.Contains(t, audit, `"amount":500`)
}

func TestATopUpWithoutAnEffectIsDenied(t *testing.T) {
	t.Parallel()
	w := selling(t)
	w.want(w.as("POST", overrides, topUpBody), http.StatusCreated)
	for fields, want := range map[string][2]string{
		`"policy":"rolling","amount":5`:                                    {"policy", "by a custom_limit with an end"},
		`"policy":"addresses","amount":5`:                                  {"policy", "addresses counts per ip"},
		`"policy":"all","amount":5`:                                        {"policy", "all counts in total"},
		`"policy":"weekly","amount":5`:                                     {"policy", "to top up: monthly, seats, varied"},
		`"policy":"monthly","amount":0`:                                    {"amount", "must be > 0, got 0"},
		`"policy":"monthly","amount":-5`:                                   {"amount", "must be > 0, got -5"},
		`"policy":"monthly","amount":1000000000000`:                        {"amount", "must be at most 999999998500: "},
		`"policy":"monthly","amount":5,"user":"u"`:                         {"user", "monthly counts per tenant"},
		`"policy":"seats","amount":5,"endpoint":"GET /x"`:                  {"endpoint", "seats counts per user"},
		`"policy":"monthly","amount":5,"credential":"c"`:                   {"credential", "monthly counts per tenant"},
		`"policy":"monthly","amount":5,"ip":"192.0.2.1"`:                   {"ip", "must be left out of a topup"},
		`"policy":"monthly","amount":5,"permanent":true`:                   {"permanent", "must be left out of a topup"},
		`"policy":"monthly","amount":5,"starts_at":"2099-01-01T00:00:00Z"`: {"starts_at", "later periods are not supported"},
		`"policy":"monthly","amount":5,"expires_at":"2099-01-01T00:00:00Z"`: {
			"expires_at", endOfMonth(t, "Asia/Tokyo").Format(time.RFC3339),
		},
	} {
		body := `{"kind":"topup","reason":"launch",` + fields + `}`
		write := w.as("POST", overrides, body)
		assert.Equal(t, write.Body.String(), w.as("POST", overrides+"/preview", body).Body.String(), "a preview")
		path, saying := w.fault(write, 422)
		assert.Equal(t, "body."+want[0], path, fields)
		assert.Contains(t, saying, want[1], fields)
	}
	free := strings.Replace(overrides, "acme", "free", 1)
	_, saying := w.fault(w.as("POST", free, topUpBody), 422)
	assert.Equal(t, "no limit of this name applies to tenant free (tier unlimited)", saying)
	someone := strings.Replace(overrides, "acme", "someone", 1)
	varied := strings.Replace(topUpBody, "monthly", "varied", 1)
	_, saying = w.fault(w.as("POST", someone, varied), 422)
	assert.Contains(t, saying, "set the tenant's tier first")
	w.sees("someone", "silver", "consumer.tag.tier", 0)
	w.want(w.as("POST", someone, varied), http.StatusCreated)

	w.want(w.as("POST", overrides, `{"kind":"ban","reason":"abuse","permanent":true}`), http.StatusCreated)
	w.want(w.as("POST", overrides, topUpBody), http.StatusCreated) // it has an effect when the ban ends
	w.want(w.as("POST", overrides, `{"kind":"exempt","reason":"a partner","permanent":true}`), http.StatusCreated)
	_, saying = w.fault(w.as("POST", overrides, topUpBody), 422)
	assert.Contains(t, saying, "exempts it")
}

func TestATopUpOfAnUnknownConfigNeedsTheEndOfThePeriod(t *testing.T) {
	t.Parallel()
	w := selling(t, func(o *api.Options) { o.Decider = nil })
	path, saying := w.fault(w.as("POST", overrides, topUpBody), 422)
	assert.Equal(t, "body.policy", path)
	assert.Contains(t, saying, "expires_at, the end of the period")
	until := func(end string) string { return strings.TrimSuffix(topUpBody, "}") + `,"expires_at":"` + end + `"}` }
	w.want(w.as("POST", overrides, until("2099-12-01T00:00:00Z")), http.StatusCreated)
	over := until("2020-12-01T00:00:00Z")
	w.wantFaults(w.as("POST", overrides, over), "body.expires_at")

	// The period of a row is known without a config.
	row := `{"tier":"gold","name":"monthly","scope":"tenant","limit":5,"algorithm":"fixed_window","period":"month",
		"reason":"sold"}`
	w.want(w.as("PUT", policies+"?overwrite=true", row), http.StatusCreated)
	made := w.want(w.as("POST", overrides, topUpBody), http.StatusCreated)
	assert.Equal(t, endOfMonth(t, "Asia/Tokyo"), read[overrideWritten](w, made).Override.ExpiresAt.UTC())
}
