package denial

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/calendar"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// taken returns the recent denials of what observe does, and checks that they count each denial once.
func taken(t *testing.T, options Options, observe func(r *Recorder)) (rows []*Recent) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		options.Recent = true
		r, to, end := running(t, options)
		observe(r)
		end()
		rows = r.TakeRecent()
		var count uint64
		ids := map[string]bool{}
		for _, row := range rows {
			count += row.Count
			ids[row.ID] = true
		}
		if all, _ := sums(to.events(t)); count != all || len(ids) != len(rows) {
			t.Errorf("%d rows with %d ids count %d denials, want %d", len(rows), len(ids), count, all)
		}
		if again := r.TakeRecent(); len(again) > 0 {
			t.Errorf("%d rows are taken twice", len(again))
		}
	})
	return rows
}

func TestADenialByTheCalendarHasThePeriodThenAndOneOfConcurrencyNoWindow(t *testing.T) {
	month, err := calendar.New(calendar.Month, calendar.Anchor{}, "Europe/Berlin")
	require.NoError(t, err)
	for _, c := range []struct {
		spec   limit.Spec
		window int64 // of a recent denial: the clock shows January 2000
		line   rate
	}{
		{
			limit.Spec{Algorithm: limit.FixedWindow, Quantity: 10, Calendar: month},
			31 * 86400,
			rate{10, 31 * 86400, "per month (Europe/Berlin)", 10},
		},
		{
			limit.Spec{Algorithm: limit.Concurrency, Quantity: 10, Window: 60 * limit.Second},
			0,
			rate{10, 60, "at once", 10},
		},
	} {
		p := named("plan", policy.Tenant)
		p.Limit, err = limit.New(c.spec)
		require.NoError(t, err)
		rows := taken(t, Options{Singles: 5}, func(r *Recorder) { r.Observe(decided("acme", answered{p, denies})) })
		assert.Equal(t, c.window, rows[0].WindowSeconds)
		synctest.Test(t, func(t *testing.T) {
			var e event
			line := written(t, complete, decided("acme", answered{p, denies}))[0].Text
			require.NoError(t, json.Unmarshal(line, &e))
			require.NoError(t, check(readSchema(t), line))
			assert.Equal(t, c.line, *e.Limit)
		})
	}
}

func TestTheFirstRecentDenialsOfACauseStandAloneAndTheNextCountTheOthers(t *testing.T) {
	rows := taken(t, Options{Singles: 5, ShowUsers: true}, func(r *Recorder) {
		for i := range 50 {
			d := decided("acme", answered{named("minute", policy.Tenant), denies})
			d.Identity.User.ID = fmt.Sprint("u_", i)
			r.Observe(d)
			wait(100 * time.Millisecond)
		}
		r.Observe(decided("globex", answered{named("minute", policy.Tenant), denies}))
	})
	var got string
	for _, row := range rows {
		got += fmt.Sprintln(row.Tenant, row.Policy, row.Count, row.TenantCount, row.User, row.Limit, row.WindowSeconds,
			row.Reason)
	}
	const want = `acme minute 1 1 u_0 10 60 quota
acme minute 1 1 u_1 10 60 quota
acme minute 48 48  10 60 quota
globex minute 1 1 u_42 10 60 quota
`
	assert.Equal(t, want, got)
}

func TestAFloodGivesABoundedNumberOfRecentDenials(t *testing.T) {
	const tenants, policies = 2000, 30
	rows := taken(t, Options{}, func(r *Recorder) {
		for i := range tenants {
			d := decided(fmt.Sprint("org-", i), answered{named("minute", policy.Tenant), denies})
			for range 5 {
				r.Observe(d)
			}
		}
		for i := range policies {
			r.Observe(decided("acme", answered{named(fmt.Sprint("p", i), policy.Tenant), denies}))
		}
	})
	if len(rows) > maxRecent+maxRecentOthers+1 {
		t.Errorf("%d denials have %d rows", tenants*5+policies, len(rows))
	}
	rows = taken(t, Options{}, func(r *Recorder) {
		for i := range policies {
			r.Observe(decided("acme", answered{named(fmt.Sprint("p", i), policy.Tenant), denies}))
		}
	})
	others := 0
	for _, row := range rows {
		if row.Reason == othersReason {
			others++
			if row.Tenant != "acme" || row.Policy != "" || row.Count != policies-maxRecentTenant {
				t.Errorf("the others are %+v", row)
			}
		}
	}
	if len(rows) != maxRecentTenant+1 || others != 1 {
		t.Errorf("a tenant has %d rows, %d of others", len(rows), others)
	}
}

func TestATenantReadsOfSharedLimitsOnlyWhatItsAnswersShow(t *testing.T) {
	shadow := named("shadow", policy.Global)
	shadow.Mode = policy.Shadow
	for name, c := range map[string]struct {
		bounds []answered
		want   map[string]uint64 // what the tenant reads, by policy
	}{
		"own and shared": {
			[]answered{{named("own", policy.Tenant), denies}, {named("all", policy.Global), denies}},
			map[string]uint64{"own": 1, "all": 0},
		},
		"shared alone":  {[]answered{{named("all", policy.Global), denies}}, map[string]uint64{"all": 1}},
		"an address":    {[]answered{{named("ip", policy.IP), denies}}, map[string]uint64{"ip": 1}},
		"shared shadow": {[]answered{{shadow, denies}}, map[string]uint64{"shadow": 0}},
	} {
		rows := taken(t, Options{}, func(r *Recorder) { r.Observe(decided("acme", c.bounds...)) })
		assert.Equal(t, len(c.want), len(rows), "%s rows", name)
		for _, row := range rows {
			if row.TenantCount != c.want[row.Policy] || row.Shadow != (row.Policy == "shadow") {
				t.Errorf("%s: the tenant reads %d of %s, want %d", name, row.TenantCount, row.Policy, c.want[row.Policy])
			}
		}
	}
}

func TestObservingAllocatesNothingForARequestThatIsAdmittedAndForAnotherDenialOfACause(t *testing.T) {
	r := New(Options{Recent: true})
	admitted, denied := decided("acme", answered{named("minute", policy.Tenant), decision.Status{}}),
		decided("acme", answered{named("minute", policy.Tenant), denies})
	assert.Zero(t, testing.AllocsPerRun(1000, func() { r.Observe(admitted) }), "an admitted request costs allocations")
	// A second that ends meanwhile begins a window, so the mean is below one, and no test may fail by the clock.
	assert.Zero(t, testing.AllocsPerRun(1000, func() { r.Observe(denied) }), "a denial costs allocations")
}

func TestARecentDenialHasTheIDsOfItsRequestsAndWhatWasLeft(t *testing.T) {
	rows := taken(t, Options{}, func(r *Recorder) {
		for i := range 60 {
			bounds := []answered{{named("all", policy.Global), denies}}
			if i == 1 {
				bounds = append(bounds, answered{named("own", policy.Tenant), denies})
			}
			d := decided("acme", bounds...)
			d.RequestID, d.PolicyVersion = fmt.Sprintf("r%02d", i), 31
			d.Statuses[0].Remaining = 3
			r.Observe(d)
			wait(100 * time.Millisecond)
		}
		d := decided("acme", answered{named("own", policy.Tenant), decision.Status{Wait: 5}})
		d.RequestID = "é"
		r.Observe(d)
	})
	ids := map[string]bool{}
	for _, row := range rows {
		if len(row.RequestIDs) > maxRecentIDs {
			t.Errorf("a row has %d ids", len(row.RequestIDs))
		}
		for _, id := range row.RequestIDs {
			ids[row.Policy+" "+id] = true
		}
		for _, id := range row.HiddenIDs {
			ids["hidden "+row.Policy+" "+id] = true
		}
	}
	if !ids["all r00"] || !ids["all r01"] || !ids["hidden all r01"] || ids["hidden all r00"] || !ids["own r01"] ||
		ids["hidden own r01"] || ids["own é"] {
		t.Errorf("the rows have the ids %v", ids)
	}
	first := rows[slices.IndexFunc(rows, func(r *Recent) bool { return r.Policy == "all" })]
	if *first.Remaining != 3 || *first.Cost != 1 || *first.PolicyVersion != 31 || *first.Capacity != 20 ||
		first.PolicyFor == "" || first.Tier != "gold" {
		t.Errorf("the first row is %+v", first)
	}
}
