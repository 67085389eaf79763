package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// nodeAfter returns a node with its last two answers, two seconds apart; "": it did not answer before.
func nodeAfter(t *testing.T, name, before, last string) *watched {
	t.Helper()
	n := &watched{address: name}
	for i, text := range []string{before, last} {
		if text == "" {
			continue
		}
		s, err := parseMetrics(strings.NewReader(text), noon.Add(time.Duration(2*i)*time.Second))
		require.NoError(t, err)
		n.before, n.last = n.last, s
	}
	return n
}

// tenantRates returns the tenants of a view with what they send and what of it is denied, in the order shown.
func tenantRates(v *topView) (list []string) {
	for _, t := range v.Tenants {
		list = append(list, fmt.Sprintf("%s %s %s", t.Tenant, t.Traffic.Requests, t.Traffic.Denied))
	}
	return list
}

func sameList(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func TestRatesAreWhatWasCountedBetweenTwoScrapes(t *testing.T) {
	n := nodeAfter(t, "edge-1",
		requested(1000, "acme", "allowed")+requested(50, "acme", "hard_throttled")+requested(7, "idle", "allowed"),
		requested(1030, "acme", "allowed")+requested(60, "acme", "hard_throttled")+
			requested(7, "idle", "allowed")+requested(4, "new", "soft_throttled"))
	v := newTopView(noon, []*watched{n}, byRequests, 9)
	sameList(t, "tenants", tenantRates(v), []string{"acme 20.0 5.0", "new 2.0 0.0"})
	if got := v.Tenants[0].Traffic.DeniedPercent; got != 25 {
		t.Errorf("%v %% are denied, want 25", got)
	}
	if v.Total.Requests != 22 || v.Nodes[0].Traffic.Requests != 22 {
		t.Errorf("in total %v, of the node %v; want 22 each", v.Total.Requests, v.Nodes[0].Traffic.Requests)
	}
}

func TestTenantsOfSeveralNodesAreAddedUpAndTheirNearestLimitIsTheGreatest(t *testing.T) {
	used := func(ratio float64, policy string) string {
		return metric(ratio, usageFamily, "org_id", "acme", "policy", policy)
	}
	v := newTopView(noon, []*watched{
		nodeAfter(t, "edge-1", requested(0, "acme", "allowed"),
			requested(20, "acme", "allowed")+used(0.4, "daily")+used(0.95, "minute")),
		nodeAfter(t, "edge-2", requested(0, "acme", "allowed"),
			requested(4, "acme", "hard_throttled")+requested(2, "beta", "allowed")+used(0.6, "daily")),
	}, byRequests, 9)
	sameList(t, "tenants", tenantRates(v), []string{"acme 12.0 2.0", "beta 1.0 0.0"})
	if got := v.Tenants[0].Nearest; got == nil || *got != (nearest{"minute", 0.95}) {
		t.Errorf("acme is nearest to %+v, want 95 %% of minute", got)
	}
	if got := v.Tenants[1].Nearest; got != nil {
		t.Errorf("beta is near %+v, want no usage", got)
	}
}

func TestTenantsAreSortedByTheGivenKey(t *testing.T) {
	last := requested(90, "busy", "allowed") + requested(40, "denied", "hard_throttled") +
		requested(10, "near", "allowed") +
		metric(0.9, usageFamily, "org_id", "near", "policy", "daily") +
		metric(0.5, usageFamily, "org_id", "quiet", "policy", "daily")
	for order, expected := range map[string][]string{
		byRequests: {"busy", "denied", "near", "quiet"},
		byDenied:   {"denied", "busy", "near", "quiet"},
		byNear:     {"near", "quiet", "busy", "denied"},
	} {
		v := newTopView(noon, []*watched{nodeAfter(t, "edge-1", "rate_limiter_instances 1\n", last)}, order, 9)
		var names []string
		for _, tenant := range v.Tenants {
			names = append(names, tenant.Tenant)
		}
		sameList(t, "sorted by "+order, names, expected)
	}
}

func TestWhatHasNoRoomIsCounted(t *testing.T) {
	var last strings.Builder
	for i := range 7 {
		last.WriteString(requested(float64(10+i), fmt.Sprint("tenant-", i), "allowed"))
		last.WriteString(metric(float64(1+i), denialsFamily,
			"policy", fmt.Sprint("policy-", i), "scope", "tenant", "tier", "gold"))
	}
	v := newTopView(noon, []*watched{nodeAfter(t, "edge-1", "rate_limiter_instances 1\n", last.String())}, byRequests, 2)
	sameList(t, "tenants", tenantRates(v), []string{"tenant-6 8.0 0.0", "tenant-5 7.5 0.0"})
	if v.MoreTenants != 5 || v.MorePolicies != 5 || len(v.Policies) != 2 || v.Policies[0].Policy != "policy-6" {
		t.Errorf("shown are %+v and %d more tenants and %d more policies, want 5 and 5",
			v.Policies, v.MoreTenants, v.MorePolicies)
	}
	if v.Total.Requests != 45.5 {
		t.Errorf("in total %v requests/s, want those of all tenants: 45.5", v.Total.Requests)
	}
}

func TestARestartedNodeCountsFromZero(t *testing.T) {
	born := func(at float64) string { return metric(at, processBornFamily) }
	acme := func(count float64) string { return requested(count, "acme", "allowed") }
	for name, c := range map[string]struct {
		before, last string
		restarted    bool
		want         string // the only tenant
	}{
		"a counter that fell":            {acme(1000), acme(6), false, "acme 3.0 0.0"},
		"another process, with less":     {born(1) + acme(1000), born(9) + acme(6), true, "acme 3.0 0.0"},
		"another process, with more":     {born(1) + acme(4), born(9) + acme(6), true, "acme 3.0 0.0"},
		"the same process":               {born(1) + acme(4), born(1) + acme(6), false, "acme 1.0 0.0"},
		"a series that ended":            {requested(4, "gone", "allowed") + acme(4), acme(6), false, "acme 1.0 0.0"},
		"a process without a start time": {born(1) + acme(4), acme(6), false, "acme 1.0 0.0"},
	} {
		v := newTopView(noon, []*watched{nodeAfter(t, "edge-1", c.before, c.last)}, byRequests, 9)
		sameList(t, name, tenantRates(v), []string{c.want})
		if v.Nodes[0].Restarted != c.restarted {
			t.Errorf("%s: restarted is %t, want %t", name, v.Nodes[0].Restarted, c.restarted)
		}
	}
}

func TestANodeThatWasUnavailableIsComparedWithItsLastAnswer(t *testing.T) {
	down := "this is not in the text format\n"
	acme := func(count float64) string { return requested(count, "acme", "allowed") }
	views := watching(t, 4, fakeNode(t, acme(0), acme(10), down, acme(30), acme(30)))
	var rates []string
	for _, v := range views {
		rates = append(rates, fmt.Sprint(v.Total.Requests, v.Nodes[0].Error == ""))
	}
	sameList(t, "refreshes", rates, []string{"5.0 true", "0.0 false", "5.0 true", "0.0 true"})
}

func TestADeadNodeDoesNotStopTheOthers(t *testing.T) {
	v := watching(t, 1, deadNode(t), fakeNode(t, requested(0, "acme", "allowed"), requested(10, "acme", "allowed")))[0]
	sameList(t, "tenants", tenantRates(v), []string{"acme 5.0 0.0"})
	if dead := v.Nodes[0]; dead.Error == "" || dead.Traffic != nil || dead.Version != nil {
		t.Errorf("the dead node is shown as %+v", dead)
	}
	if v.answering() != 1 {
		t.Errorf("%d nodes answer, want 1", v.answering())
	}
}

func TestTheFirstAnswerHasNoRates(t *testing.T) {
	n := nodeAfter(t, "edge-1", "", requested(1000, "acme", "allowed")+metric(7, versionFamily))
	v := newTopView(noon, []*watched{n}, byRequests, 9)
	if node := v.Nodes[0]; node.Traffic != nil || node.Unverified != nil || *node.Version != 7 ||
		node.note() != "first answer" {
		t.Errorf("the node is shown as %+v", node)
	}
	sameList(t, "tenants", tenantRates(v), nil)
}

func TestAClockThatStoodStillYieldsNoRates(t *testing.T) {
	n := nodeAfter(t, "edge-1", requested(1, "acme", "allowed"), requested(9, "acme", "allowed"))
	n.last.at = n.before.at
	if rates := n.rates(); rates != nil {
		t.Errorf("without time between two answers the rates are %v", rates)
	}
}

func TestANodeOfAnOlderVersionIsShownWithoutItsLabels(t *testing.T) {
	older := func(value float64) string {
		return metric(value, requestsFamily, "tier", "gold", "result", "allowed", "mode", "enforce")
	}
	v := newTopView(noon, []*watched{nodeAfter(t, "edge-1", older(2), older(6))}, byRequests, 9)
	sameList(t, "tenants", tenantRates(v), []string{"(none) 2.0 0.0"})
	if got := v.Tenants[0]; got.Endpoint != "(none)" || got.Tier != "gold" {
		t.Errorf("the requests are of %+v", got)
	}
}

func TestNumbersThatCannotBeAreLeftOut(t *testing.T) {
	for _, number := range []string{"NaN", "+Inf", "-Inf", "-1", "1e300"} {
		last := strings.ReplaceAll(requested(777, "acme", "allowed")+
			metric(777, usageFamily, "org_id", "acme", "policy", "daily")+
			metric(777, versionFamily)+metric(777, ageFamily), "777", number)
		v := newTopView(noon, []*watched{nodeAfter(t, "edge-1", requested(0, "acme", "allowed"), last)}, byNear, 9)
		if len(v.Tenants) != 0 || v.Nodes[0].Version != nil || v.Nodes[0].Age != nil {
			t.Errorf("%s is believed: %+v, %+v", number, v.Tenants, v.Nodes[0])
		}
		if err := writeJSON(new(strings.Builder), v); err != nil {
			t.Errorf("%s: %v", number, err)
		}
	}
}

func TestDegradedStoresAndPoliciesAreShownForEachNode(t *testing.T) {
	text := func(n float64) string {
		return metric(1, degradedFamily, "store", "redis-b:6379") + metric(1, degradedFamily, "store", "redis-a:6379") +
			metric(0, degradedFamily, "store", "fine:6379") +
			metric(41, versionFamily) + metric(90.4, ageFamily) + metric(0, connectedFamily) +
			metric(n, unverifiedFamily, "policy", "daily", "fail_mode", "open") +
			metric(2*n, unverifiedFamily, "policy", "daily", "fail_mode", "local")
	}
	node := newTopView(noon, []*watched{nodeAfter(t, "edge-1", text(10), text(14))}, byRequests, 9).Nodes[0]
	sameList(t, "degraded", node.Degraded, []string{"redis-a:6379", "redis-b:6379"})
	if *node.Version != 41 || *node.Age != 90.4 || *node.Connected || *node.Unverified != 6 {
		t.Errorf("version %d, age %v, connected %t, unverified %v",
			*node.Version, *node.Age, *node.Connected, *node.Unverified)
	}
}
