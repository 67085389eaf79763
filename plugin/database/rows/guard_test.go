package rows_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestReviewComparesOnlyPoliciesThatOneRequestCanHave(t *testing.T) {
	shared := rows.Policy{Policy: schema.Policy{Tier: "gold", Limit: schema.Limit{
		Name: "all", Scope: "global", Limit: 4, WindowSize: 60,
	}}}
	own := rows.Policy{Policy: schema.Policy{Limit: schema.Limit{
		Name: "daily", Scope: "tenant", Limit: 10, WindowSize: 60,
	}}}
	for name, c := range map[string]struct {
		edit  func(*rows.Policy)
		locks bool
	}{
		"of the same tier":     {func(p *rows.Policy) { p.Tier = "gold" }, true},
		"of another tier":      {func(p *rows.Policy) { p.Tier = "silver" }, false},
		"of a tenant":          {func(p *rows.Policy) { p.Tenant = "acme" }, true},
		"in another namespace": {func(p *rows.Policy) { p.Tier, p.Namespace = "gold", "other" }, false},
		"that allows less":     {func(p *rows.Policy) { p.Tier, p.Limit.Limit = "gold", 3 }, false},
		"of the same name":     {func(p *rows.Policy) { p.Tenant, p.Name = "acme", "all" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := open(t)
			other := own
			c.edit(&other)
			put(t, s, other)
			review, err := s.Review(t.Context(), nil, "", shared)
			if locks := len(review.LockOuts) > 0; err != nil || locks != c.locks {
				t.Errorf("the review is %+v (%v), want a lock-out: %t", review, err, c.locks)
			}
		})
	}
}

func TestAPairThatASetWritesIsReportedOnce(t *testing.T) {
	s, _ := open(t)
	all, daily := ofLimit("all", "global", 4), ofLimit("daily", "tenant", 10)
	hourly := ofLimit("hourly", "tenant", 9)
	type list = []rows.Policy
	for name, c := range map[string]struct {
		before, set        list
		lockOuts, warnings int
	}{
		"both are written":      {nil, list{all, daily}, 1, 0},
		"both of two are":       {nil, list{all, daily, hourly}, 1, 0},
		"neither is written":    {list{all, daily}, nil, 0, 0},
		"the tenants' are":      {list{all}, list{daily, hourly}, 0, 1},
		"the shared one is":     {list{daily}, list{all}, 1, 0},
		"the shared one goes":   {list{all}, list{ofLimit("all", "user", 4), daily}, 0, 0},
		"the tenant's is lower": {list{daily}, list{ofLimit("daily", "tenant", 3), all}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := s.Apply(t.Context(), ann, rows.Set{Policies: c.before})
			require.NoError(t, err)
			var got rows.Review
			set := rows.Set{Policies: c.set, Partial: true, Accept: func(_ rows.SetDiff, r rows.Review) error {
				got = r
				return nil
			}}
			_, _, err = s.Apply(t.Context(), ann, set)
			require.NoError(t, err)
			isOfTier := func(warning string) bool { return strings.Contains(warning, "no tier") }
			got.Warnings = slices.DeleteFunc(got.Warnings, isOfTier)
			if len(got.LockOuts) != c.lockOuts || len(got.Warnings) != c.warnings {
				t.Errorf("the review is %+v, want %d lock-outs and %d warnings", got, c.lockOuts, c.warnings)
			}
		})
	}
}

// ofLimit returns a policy of the tier gold with a limit per minute.
func ofLimit(name, scope string, limit int64) rows.Policy {
	return rows.Policy{Policy: schema.Policy{Tier: "gold", Limit: schema.Limit{
		Name: name, Scope: scope, Limit: limit, WindowSize: 60,
	}}}
}

func TestOneWarningStandsForAllTenantsAboveASharedLimit(t *testing.T) {
	s, _ := open(t)
	put(t, s, ofLimit("all", "global", 4))
	for _, c := range []struct {
		tenants []string
		end     string
	}{
		{[]string{"a"}, "4 per 60 s"},
		{[]string{"a", "b"}, "4 per 60 s; and 1 more does so"},
		{[]string{"a", "b", "c"}, "4 per 60 s; and 2 more do so"},
	} {
		set := rows.Set{Partial: true}
		for _, tenant := range c.tenants {
			p := ofLimit("daily", "tenant", 10)
			p.Tier, p.Tenant = "", tenant
			set.Policies = append(set.Policies, p)
		}
		declined := errors.New("only reviewed")
		set.Accept = func(_ rows.SetDiff, r rows.Review) error {
			if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "policy daily of tenant a allows") ||
				!strings.HasSuffix(r.Warnings[0], c.end) {
				t.Errorf("the warnings are %q, want one that ends with %q", r.Warnings, c.end)
			}
			return declined
		}
		_, _, err := s.Apply(t.Context(), ann, set)
		require.ErrorIs(t, err, declined, "apply ends")
	}
}

// over changes what a policy counts over.
func over(p rows.Policy, algorithm string, w schema.Window) rows.Policy {
	p.Algorithm = algorithm
	p.SetWindow(w)
	return p
}

func TestPeriodsAndRequestsAtOnceAreComparedWithTheirLike(t *testing.T) {
	const fixed, atOnce = schema.AlgorithmFixedWindow, schema.AlgorithmConcurrency
	month, day, slots := schema.Window{Period: "month"}, schema.Window{WindowSize: 86400}, schema.Window{MaxDuration: 60}
	short := schema.Window{MaxDuration: 9}
	all, one := ofLimit("all", "global", 100), ofLimit("one", "tenant", 101)
	for name, c := range map[string]struct {
		all, one rows.Policy
		why      string
	}{
		"of one period":         {over(all, fixed, month), over(one, fixed, month), "one tenant 101 per month (UTC),"},
		"a window and a period": {over(all, fixed, month), over(one, fixed, day), "one tenant 101 per 86400 s,"},
		"a period and a window": {over(all, fixed, day), over(one, fixed, month), ""},
		"requests at once":      {over(all, atOnce, slots), over(one, atOnce, short), "101 at once,"},
		"at once and a window":  {over(all, atOnce, slots), over(one, fixed, day), ""},
		"a window and at once":  {over(all, fixed, day), over(one, atOnce, slots), ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := open(t)
			put(t, s, c.one)
			review, err := s.Review(t.Context(), nil, "", c.all)
			require.NoError(t, err)
			if locks := len(review.LockOuts) > 0; locks != (c.why != "") || locks &&
				!strings.Contains(review.LockOuts[0].Why, c.why) {
				t.Errorf("the review is %+v, want %q", review, c.why)
			}
		})
	}
}

func TestAnOverrideWarnsOfAWindowThatACalendarIgnores(t *testing.T) {
	s, _ := open(t)
	monthly := over(ofLimit("monthly", "tenant", 100), schema.AlgorithmFixedWindow, schema.Window{Period: "month"})
	monthly.Tier, monthly.Tenant = "", "acme"
	put(t, s, monthly)
	for window, want := range map[int64]bool{60: true, 0: false} {
		warnings, err := s.OverrideWarnings(t.Context(), nil, func(string) bool { return true }, rows.Override{
			Override: schema.Override{
				Kind: schema.KindCustomLimit, Tenant: "acme", Policy: "monthly", Limit: 7, WindowSize: window,
			},
		})
		isOfWindow := func(text string) bool {
			return text == "window_size has no effect on policy monthly of tenant acme, which allows 100 per month (UTC)"
		}
		if err != nil || slices.ContainsFunc(warnings, isOfWindow) != want {
			t.Errorf("window %d: %q (%v)", window, warnings, err)
		}
	}
}

func TestASetWarnsOnceOfEachNewTier(t *testing.T) {
	s, _ := open(t)
	put(t, s, ofLimit("old", "tenant", 4))
	set := rows.Set{Partial: true, Policies: []rows.Policy{ofLimit("more", "tenant", 4)}}
	for _, name := range []string{"a", "b"} {
		p := ofLimit(name, "tenant", 10)
		p.Tier = "glod"
		set.Policies = append(set.Policies, p)
	}
	for round, want := range []int{1, 0} {
		set.Accept = func(_ rows.SetDiff, r rows.Review) error {
			if len(r.Warnings) != want || want == 1 && !strings.Contains(r.Warnings[0], `no tier "glod"`) {
				t.Errorf("round %d: the warnings are %q, want %d", round, r.Warnings, want)
			}
			return nil
		}
		_, _, err := s.Apply(t.Context(), ann, set)
		require.NoError(t, err)
	}
}

func TestReviewComparesATenantWithTheLimitsOfItsRowsTierAlone(t *testing.T) {
	shared, own := ofLimit("all", "global", 4), ofLimit("daily", "tenant", 10)
	own.Tier, own.Tenant = "", "acme"
	for name, c := range map[string]struct {
		tier  string
		locks bool
	}{
		"of the same tier":              {"gold", true},
		"of another tier":               {"silver", false},
		"of a tier that does not exist": {"slver", true},
		"without a tier":                {"", true},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := open(t)
			put(t, s, own)
			_, _, err := s.PutTier(t.Context(), ann, rows.Tier{Name: "silver"})
			require.NoError(t, err)
			_, _, err = s.SetTenant(t.Context(), ann, ofTier(c.tier, 0))
			require.NoError(t, err)
			put(t, s, ofLimit("other", "tenant", 1)) // the tier gold exists
			review, err := s.Review(t.Context(), nil, "", shared)
			if locks := len(review.LockOuts) > 0; err != nil || locks != c.locks {
				t.Errorf("the review is %+v (%v), want a lock-out: %t", review, err, c.locks)
			}
		})
	}
}

func TestAPolicyInANamespaceWithoutOtherPoliciesHasAWarning(t *testing.T) {
	s, _ := open(t)
	warns := func(namespace string) bool {
		t.Helper()
		p := ofLimit("daily", "tenant", 10)
		p.Namespace = namespace
		review, err := s.Review(t.Context(), nil, "", p)
		require.NoError(t, err)
		return slices.ContainsFunc(review.Warnings, func(warning string) bool {
			return strings.Contains(warning, "no other policy is in namespace")
		})
	}
	assert.False(t, warns("prod"), "the first policy of all has a warning")
	first := ofLimit("hourly", "tenant", 10)
	first.Namespace = "prod"
	put(t, s, first)
	for namespace, want := range map[string]bool{"prod": false, "prdo": true, "": true} {
		assert.Equal(t, want, warns(namespace), "a policy in namespace %q has a warning", namespace)
	}
}
