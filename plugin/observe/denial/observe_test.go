package denial

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// recorded are the events of decisions within one second, as org policy reason mode count answers, sorted.
func recorded(t *testing.T, options Options, decisions ...*decision.Decision) (events []event, summary string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r, to, end := running(t, options)
		for _, d := range decisions {
			r.Observe(d)
		}
		end()
		events = to.events(t)
	})
	lines := make([]string, len(events))
	for i, e := range events {
		lines[i] = fmt.Sprintln(e.Org, e.Policy, e.Reason, e.Mode, e.Count, e.Answers)
	}
	slices.Sort(lines)
	return events, strings.Join(lines, "")
}

func TestADenialIsRecordedForEachPolicyThatDenies(t *testing.T) {
	minute, daily := named("minute", policy.Tenant), named("daily", policy.Tenant)
	closed := named("closed", policy.Tenant)
	minuteClosed := minute
	closed.FailMode, minuteClosed.FailMode = policy.FailClosed, policy.FailClosed
	trial, watch := named("trial", policy.User), named("watch", policy.User)
	trial.Mode, watch.Mode = policy.Shadow, policy.Log
	rehearsed := decided("acme", answered{minute, admits})
	rehearsed.Mode = policy.Log
	rehearsed.DenyOrRecord(decision.TenantMissing, 0)
	tests := []struct {
		name     string
		decision *decision.Decision
		want     string
	}{
		{"admitted", decided("acme", answered{minute, admits}), ""},
		{"a policy", decided("acme", answered{minute, denies}, answered{daily, admits}), "acme minute quota enforce 1 1\n"},
		{
			"two policies, one answer",
			decided("acme", answered{minute, denies}, answered{daily, deniesLong}),
			"acme daily quota enforce 1 1\nacme minute quota enforce 1 0\n",
		},
		{"a share while Redis is unavailable", decided("acme", answered{minute, localNo}), "acme minute quota enforce 1 1\n"},
		{
			"a fair share", decided("acme", answered{minute, shareNo}, answered{trial, shareNo}),
			"acme minute fair_share enforce 1 1\nacme trial fair_share shadow 1 0\n",
		},
		{"shadow", decided("acme", answered{minute, admits}, answered{trial, denies}), "acme trial quota shadow 1 0\n"},
		{
			"log beside enforce",
			decided("acme", answered{minute, denies}, answered{watch, denies}),
			"acme minute quota enforce 1 1\nacme watch quota log 1 0\n",
		},
		{
			"closed, one answer",
			decided("acme", answered{closed, unanswered}, answered{closed, unanswered}),
			"acme closed store_away enforce 2 1\n",
		},
		{
			"closed twice, the longer wait answers",
			decided(
				"acme",
				answered{minuteClosed, decision.Status{Failure: decision.TimedOut, Wait: 1}},
				answered{closed, unanswered},
			),
			"acme closed store_away enforce 1 1\nacme minute store_away enforce 1 0\n",
		},
		{
			"closed beside one without room",
			decided("acme", answered{closed, unanswered}, answered{minute, denies}),
			"acme minute quota enforce 1 1\n",
		},
		{"open", decided("acme", answered{minute, unanswered}), ""},
		{"a missing tenant", deniedFor("", decision.TenantMissing), "  tenant_missing enforce 1 1\n"},
		{"a missing tenant in log mode", rehearsed, "acme  tenant_missing log 1 0\n"},
		{"the meta limit", deniedFor("acme", decision.MetaLimited), "acme  meta_limited enforce 1 1\n"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, got := recorded(t, Options{}, test.decision)
			assert.Equal(t, test.want, got)
		})
	}
}

func TestDenialsOfOneTenantPolicyAndSecondAreOneLine(t *testing.T) {
	minute := named("minute", policy.Tenant)
	synctest.Test(t, func(t *testing.T) {
		r, to, end := running(t, Options{})
		r.Observe(decided("acme", answered{minute, denies}))
		wait(250 * time.Microsecond)
		r.Observe(decided("acme", answered{minute, denies}))
		r.Observe(decided("globex", answered{minute, denies}))
		wait(time.Second)
		r.Observe(decided("acme", answered{minute, denies}))
		end()
		var got strings.Builder
		events := to.events(t)
		slices.SortFunc(events, func(a, b event) int { return strings.Compare(a.First+a.Org, b.First+b.Org) })
		for _, e := range events {
			fmt.Fprintln(&got, e.Org, e.Count, e.First, e.Last)
		}
		const want = `acme 2 2000-01-01T00:00:00.000000Z 2000-01-01T00:00:00.000250Z
globex 1 2000-01-01T00:00:00.000250Z 2000-01-01T00:00:00.000250Z
acme 1 2000-01-01T00:00:01.000250Z 2000-01-01T00:00:01.000250Z
`
		assert.Equal(t, want, got.String())
	})
}

func TestALineSaysInWhatItsRequestsDiffer(t *testing.T) {
	minute := named("minute", policy.Tenant)
	first := decided("acme", answered{minute, denies})
	other := decided("acme", answered{minute, deniesLong})
	other.Identity.User.ID, other.Resolution.Endpoint = "u_43", "GET /records"
	events, _ := recorded(t, Options{}, first, first, other)
	if len(events) != 1 || !slices.Equal(events[0].Mixed, []string{"user", "endpoint", "source"}) ||
		events[0].Endpoint != first.Resolution.Endpoint {
		t.Errorf("recorded %+v, want one line that describes the first and names what is mixed", events)
	}
	if events, _ := recorded(t, Options{}, first, first); len(events) != 1 || events[0].Mixed != nil {
		t.Errorf("recorded %+v, want nothing mixed", events)
	}
}

func TestBeyondTheCeilingTenantsAreCountedTogetherPerPolicy(t *testing.T) {
	minute, daily := named("minute", policy.Tenant), named("daily", policy.Tenant)
	trial := daily
	trial.Mode = policy.Shadow
	synctest.Test(t, func(t *testing.T) {
		r, to, end := running(t, Options{MaxGroups: 2})
		for _, org := range []string{"a", "b", "c", "d", "a", "e"} {
			r.Observe(decided(org, answered{minute, denies}))
		}
		r.Observe(decided("f", answered{daily, denies}, answered{trial, denies}))
		end()
		var got []string
		for _, e := range to.events(t) {
			got = append(got, fmt.Sprint(e.Org, " ", e.Policy, " ", e.Mode, " ", e.Others, " ", e.Count))
		}
		slices.Sort(got)
		want := []string{
			" daily enforce true 1",
			" daily shadow true 1",
			" minute enforce true 3",
			"a minute enforce false 2",
			"b minute enforce false 1",
		}
		if !slices.Equal(got, want) || r.Stats()[0].Dropped[Groups] != 5 {
			t.Errorf("lines are %q, folded %d; want %q, folded 5", got, r.Stats()[0].Dropped[Groups], want)
		}
	})
}

func TestEvenTheLinesOfOthersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, to, end := running(t, Options{MaxGroups: 1})
		const policies = 2*maxOthers + 1
		for i := range policies {
			r.Observe(decided("acme", answered{named(fmt.Sprint("p", i), policy.Tenant), denies}))
		}
		end()
		events := to.events(t)
		if count, _ := sums(events); count != policies || len(events) != 1+maxOthers+1 {
			t.Errorf("%d lines count %d denials; want %d, and %d", len(events), count, 1+maxOthers+1, policies)
		}
	})
}

func TestUsersAndAddressesAreHashedUnlessTheyAreToBeShown(t *testing.T) {
	minute := named("minute", policy.Tenant)
	one, elsewhere := decided("acme", answered{minute, denies}), decided("globex", answered{minute, denies})
	anonymous := decided("192.0.2.7", answered{minute, denies})
	anonymous.Identity.Tenant.Kind, anonymous.Identity.User = identity.IP, identity.Name{}
	same := Options{Salt: []byte("pepper")}
	hashes := map[string]bool{}
	for _, options := range []Options{same, same, {Salt: []byte("salt")}, {}, {}} {
		for _, d := range []*decision.Decision{one, elsewhere, anonymous} {
			events, _ := recorded(t, options, d)
			hidden := events[0].User
			if d == anonymous {
				hidden = events[0].Org
			}
			if len(hidden) != len(hashPrefix)+32 || strings.Contains(hidden, "u_42") || strings.Contains(hidden, "192.0.2.7") {
				t.Errorf("%q is no hash", hidden)
			}
			hashes[hidden] = true
		}
	}
	assert.EqualValues(t, 3*4, len(hashes))
	shown := Options{ShowUsers: true}
	events, _ := recorded(t, shown, one)
	assert.Equal(t, "u_42", events[0].User, "the user")
	if events, _ := recorded(t, shown, anonymous); events[0].Org != "192.0.2.7" || events[0].OrgKind != "ip" {
		t.Errorf("the tenant is %q, want the address as it is", events[0].Org)
	}
}

func TestObservingAllocatesNothingButForTheFirstOfALine(t *testing.T) {
	minute := named("minute", policy.Tenant)
	synctest.Test(t, func(t *testing.T) { // its clock stands still: all is one second
		for name, d := range map[string]*decision.Decision{
			"admitted":       decided("acme", answered{minute, admits}),
			"denied":         decided("acme", answered{minute, denies}, answered{named("daily", policy.Tenant), deniesLong}),
			"a long tenant":  decided(strings.Repeat("é", maxText), answered{minute, denies}),
			"meta limited":   deniedFor("acme", decision.MetaLimited),
			"one of several": decided("beyond", answered{minute, denies}),
		} {
			r := New(Options{MaxGroups: 2})
			if name == "one of several" {
				r.Observe(decided("a", answered{minute, denies}))
				r.Observe(decided("b", answered{minute, denies}))
			}
			r.Observe(d)
			assert.Zero(t, testing.AllocsPerRun(100, func() { r.Observe(d) }), "%s allocations", name)
		}
	})
}
