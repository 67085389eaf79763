package usage

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

var (
	daily  = policy.Policy{Name: "daily", Scope: policy.Tenant}
	minute = policy.Policy{Name: "minute", Scope: policy.TenantEndpoint}
	trial  = policy.Policy{Name: "trial", Scope: policy.Tenant, Mode: policy.Shadow}
	closed = policy.Policy{Name: "closed", Scope: policy.Tenant, FailMode: policy.FailClosed}
)

// unavailable is the status of a bound whose store does not answer.
var unavailable = decision.Status{Failure: decision.Unavailable, Wait: limit.Second}

// The package comment as a table: where a request counts. Rows are those of acme and GET /x, by policy.
func TestWhereARequestCounts(t *testing.T) {
	const none = NoRemaining
	local := decision.Status{Source: decision.Local, Failure: decision.TimedOut, Charged: true}
	local.Remaining = 3
	denied := func(reason decision.Reason) *decision.Decision {
		d := decided(t, "acme", "GET /x", answered{daily, 1, admits(9)})
		d.Statuses = d.Statuses[:0]
		d.Deny(reason)
		return d
	}
	exempt := decided(t, "acme", "GET /x")
	exempt.Resolution.Exempt, exempt.Resolution.Exemption.By = true, "tenant"
	exempt.RecordExemption()
	rehearsed := decided(t, "acme", "GET /x", answered{trial, 1, admits(9)})
	rehearsed.Mode = policy.Shadow
	rehearsed.DenyOrRecord(decision.TenantMissing, 0)
	for name, test := range map[string]struct {
		d    *decision.Decision
		want map[string]Counts
	}{
		"admitted": {
			decided(t, "acme", "GET /x", answered{daily, 5, admits(95)}, answered{minute, 1, admits(7)}),
			map[string]Counts{
				"": {Admitted: 1, Remaining: none}, "daily//": {Admitted: 1, Cost: 5, Remaining: 95},
				"minute//": {Admitted: 1, Cost: 1, Remaining: 7},
			},
		},
		"above a soft threshold": {
			decided(t, "acme", "GET /x", answered{daily, 5, soft(1)}, answered{minute, 1, admits(7)}),
			map[string]Counts{
				"": {Admitted: 1, Soft: 1, Remaining: none}, "daily//": {Admitted: 1, Soft: 1, Cost: 5, Remaining: 1},
				"minute//": {Admitted: 1, Cost: 1, Remaining: 7},
			},
		},
		"denied by one of two": {
			decided(t, "acme", "GET /x", answered{daily, 5, denies(2)}, answered{minute, 1, decision.Status{
				Source: decision.Redis, Status: limit.Status{Remaining: 7},
			}}),
			map[string]Counts{
				"": {Denied: 1, Remaining: none}, "daily//": {Denied: 1, Remaining: 2}, "minute//": {Remaining: 7},
			},
		},
		"denied in shadow": {
			decided(t, "acme", "GET /x", answered{daily, 5, admits(95)}, answered{trial, 1, denies(0)}),
			map[string]Counts{
				"": {Admitted: 1, ShadowDenied: 1, Remaining: none}, "daily//": {Admitted: 1, Cost: 5, Remaining: 95},
				"trial//": {Admitted: 1, ShadowDenied: 1, Remaining: 0},
			},
		},
		"denied without a tenant in a config in shadow": {
			rehearsed,
			map[string]Counts{
				"": {Admitted: 1, ShadowDenied: 1, Remaining: none}, "trial//": {Admitted: 1, Cost: 1, Remaining: 9},
			},
		},
		"admitted by fail mode open": {
			decided(t, "acme", "GET /x", answered{daily, 5, unavailable}),
			map[string]Counts{"": {Admitted: 1, Remaining: none}, "daily//": {Admitted: 1, Cost: 5, Remaining: none}},
		},
		"admitted by fail mode local": {
			decided(t, "acme", "GET /x", answered{daily, 5, local}),
			map[string]Counts{"": {Admitted: 1, Remaining: none}, "daily//": {Admitted: 1, Cost: 5, Remaining: none}},
		},
		"denied by fail mode closed": {
			decided(t, "acme", "GET /x", answered{closed, 5, unavailable}, answered{minute, 1, unavailable}),
			map[string]Counts{"": {Denied: 1, Remaining: none}, "closed//": {Denied: 1, Remaining: none}},
		},
		"denied by a limit while another one fails closed": {
			decided(t, "acme", "GET /x", answered{closed, 5, unavailable}, answered{minute, 1, denies(0)}),
			map[string]Counts{"": {Denied: 1, Remaining: none}, "minute//": {Denied: 1, Remaining: 0}},
		},
		"denied, and one limit was not read": {
			decided(t, "acme", "GET /x", answered{daily, 5, denies(2)}, answered{minute, 1, decision.Status{}}),
			map[string]Counts{"": {Denied: 1, Remaining: none}, "daily//": {Denied: 1, Remaining: 2}},
		},
		"banned":       {denied(decision.Banned), map[string]Counts{"": {Denied: 1, Remaining: none}}},
		"meta limited": {denied(decision.MetaLimited), map[string]Counts{"": {Denied: 1, Remaining: none}}},
		"exempt":       {exempt, map[string]Counts{"": {Admitted: 1, Remaining: none}}},
	} {
		c := NewCounter()
		c.Observe(test.d)
		got := map[string]Counts{}
		for _, row := range c.cut() {
			if row.Tenant != "acme" || row.Endpoint != "GET /x" {
				t.Errorf("%s: a row of %+v", name, row.Key)
			}
			got[row.Policy] = row.Counts
		}
		assert.Equal(t, test.want, got, "%s counts", name)
	}
}

func TestRequestsOfAllConnectionsAddUp(t *testing.T) {
	c := NewCounter()
	for i := range 100 {
		d := decided(t, "acme", "GET /x", answered{daily, 2, admits(int64(50 + i%7))})
		d.Exchange = uint32(i)
		c.Observe(d)
	}
	want := []Row{
		{Key{"acme", "GET /x", ""}, Counts{Admitted: 100, Remaining: NoRemaining}},
		{Key{"acme", "GET /x", "daily//"}, Counts{Admitted: 100, Cost: 200, Remaining: 50}},
	}
	if got := c.cut(); !reflect.DeepEqual(got, want) || c.Rows() != 0 {
		t.Errorf("rows are %+v, want %+v; %d stay", got, want, c.Rows())
	}
	assert.Empty(t, c.cut(), "they count again")
}

func TestASettlementChangesTheCost(t *testing.T) {
	c := NewCounter()
	d := decided(t, "acme", "chat", answered{daily, 500, admits(500)})
	c.Observe(d)
	b := &d.Resolution.Bounds[0]
	c.Reserved(b)
	c.Settled(b, reservation.Settlement{Actual: 30, Change: -470, Tenant: "acme", Endpoint: "chat"})
	c.Settled(b, reservation.Settlement{Outcome: reservation.TimedOut, Tenant: "acme", Endpoint: "chat"})
	if got := c.cut()[1].Counts; got.Cost != 30 || got.Admitted != 1 {
		t.Errorf("the policy counts %+v, want a cost of 30", got)
	}
	c.Settled(b, reservation.Settlement{Actual: 31, Change: 1, Tenant: "acme", Endpoint: "chat"})
	want := []Row{{Key{"acme", "chat", "daily//"}, Counts{Cost: 1, Remaining: NoRemaining}}}
	assert.Equal(t, want, c.cut(), "a settlement after the batch counts")
}

// An address is personal data, and there are too many of them.
func TestAnonymousRequestsHaveNoTenant(t *testing.T) {
	c := NewCounter()
	for i := range 100 {
		d := decided(t, "", "GET /x")
		d.Identity.Tenant = identity.Name{Kind: identity.IP, ID: fmt.Sprintf("192.0.2.%d", i)}
		c.Observe(d)
	}
	want := []Row{{Key{"", "GET /x", ""}, Counts{Admitted: 100, Remaining: NoRemaining}}}
	assert.Equal(t, want, c.cut())
}

func TestARouteThatDoesNotExistIsNoEndpoint(t *testing.T) {
	c := NewCounter()
	c.Routes = func(name string) bool { return name == "chat" }
	for _, route := range []string{"chat", "made-up"} {
		d := decided(t, "acme", route)
		d.Identity.Route = route
		c.Observe(d)
		c.Settled(&policy.Bound{Policy: &daily}, reservation.Settlement{Change: 1, Tenant: "acme", Endpoint: route})
	}
	pattern := decided(t, "acme", "GET /x")
	pattern.Identity.Route = "made-up"
	c.Observe(pattern)
	c.Settled(&policy.Bound{Policy: &daily}, reservation.Settlement{Change: 1, Tenant: "acme", Endpoint: "GET /x"})
	got := map[string]int{}
	for _, row := range c.cut() {
		got[row.Endpoint]++
	}
	assert.Equal(t, map[string]int{"": 2, "chat": 2, "GET /x": 2}, got, "rows by endpoint")
}

func TestNamesThatPostgresCannotStoreAreReplaced(t *testing.T) {
	c := NewCounter()
	long := strings.Repeat("x", MaxName-1) + "é"
	for _, endpoint := range []string{"\xff", "\uFFFD", "a\x00b", long} {
		c.Observe(decided(t, "acme", endpoint))
	}
	got := total{}
	got.add(c.cut())
	for endpoint, want := range map[string]int64{"\uFFFD": 2, "a\uFFFDb": 1, long[:MaxName-1]: 1} {
		assert.Equal(t, want, got[Key{"acme", endpoint, ""}].Admitted, "%.20q counts requests", endpoint)
	}
}

func TestRowsBeyondTheMaximumAreDroppedAndCounted(t *testing.T) {
	c := NewCounter()
	c.maxRows = 10
	observe := func(n int) {
		d := decided(t, fmt.Sprint("tenant-", n), "GET /x", answered{daily, 1, admits(9)})
		d.Exchange = uint32(n)
		c.Observe(d)
	}
	for n := range 2 {
		observe(n)
	}
	select {
	case <-c.full:
		t.Error("4 of 10 rows ask for a batch")
	default:
	}
	for n := range 7 {
		observe(n)
	}
	select {
	case <-c.full:
	default:
		t.Error("10 of 10 rows ask for no batch")
	}
	observe(0)
	if c.Dropped() != 2 || c.Rows() != 10 {
		t.Errorf("%d counts were dropped with %d rows, want 2 of the places without a row, and 10", c.Dropped(), c.Rows())
	}
	got := total{}
	if got.add(c.cut()); got[Key{"tenant-0", "GET /x", ""}].Admitted != 3 || len(got) != 10 {
		t.Errorf("rows are %+v, want three requests of the tenant that had a row", got)
	}
	for n := range 5 {
		observe(n)
	}
	if c.Dropped() != 2 || c.Rows() != 10 {
		t.Errorf("after a batch %d counts were dropped with %d rows, want room for 10 again", c.Dropped(), c.Rows())
	}
}

// typical returns the decision of a request with four limits.
func typical(t testing.TB, tenant string) *decision.Decision {
	hour := policy.Policy{Name: "hour", Scope: policy.User}
	second := policy.Policy{Name: "second", Scope: policy.Endpoint}
	return decided(t, tenant, "GET /v1/records/:id", answered{daily, 1, admits(95)}, answered{minute, 1, admits(7)},
		answered{hour, 1, soft(5)}, answered{second, 1, admits(100)})
}

func TestCountingARequestOfARowThatExistsAllocatesNothing(t *testing.T) {
	c, d := NewCounter(), typical(t, "acme")
	b := &d.Resolution.Bounds[0]
	settled := reservation.Settlement{Change: 1, Tenant: "acme", Endpoint: d.Resolution.Endpoint}
	for i := range uint32(stripes) { // a settlement counts in any stripe
		d.Exchange = i
		c.Observe(d)
	}
	n := testing.AllocsPerRun(1000, func() {
		c.Observe(d)
		c.Settled(b, settled)
	})
	assert.Zero(t, n)
}
