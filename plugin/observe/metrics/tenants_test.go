package metrics

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
)

// samples lists the samples of a family of counters or gauges, without its name.
func samples(t *testing.T, m *Metrics, name string) string {
	t.Helper()
	families, err := m.Gather()
	require.NoError(t, err)
	var lines strings.Builder
	for _, f := range families {
		if f.GetName() != prefix+name {
			continue
		}
		for _, metric := range f.GetMetric() {
			for _, label := range metric.GetLabel() {
				fmt.Fprintf(&lines, "%s=%q ", label.GetName(), label.GetValue())
			}
			fmt.Fprintln(&lines, metric.GetCounter().GetValue()+metric.GetGauge().GetValue())
		}
	}
	return strings.TrimSuffix(lines.String(), "\n")
}

// byOrg returns the counted requests for each org_id.
func byOrg(t *testing.T, m *Metrics) map[string]float64 {
	t.Helper()
	families, err := m.Gather()
	require.NoError(t, err)
	counts := map[string]float64{}
	for _, f := range families {
		if f.GetName() != prefix+"requests_total" {
			continue
		}
		for _, metric := range f.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == orgLabel {
					counts[label.GetValue()] += metric.GetCounter().GetValue()
				}
			}
		}
	}
	return counts
}

// observe counts so many requests for each tenant.
func observe(m *Metrics, requests int, ids ...string) {
	d := new(decision.Decision)
	d.Reset()
	for _, id := range ids {
		d.Identity.Tenant = identity.Name{Kind: identity.Tenant, ID: id}
		for range requests {
			m.Observe(d)
		}
	}
}

// wantOrgs checks the counted requests of all tenants.
func wantOrgs(t *testing.T, m *Metrics, want map[string]float64) {
	t.Helper()
	got := byOrg(t, m)
	assert.True(t, fmt.Sprint(got) == fmt.Sprint(want), "requests are %v, want %v", got, want)
}

func TestARequestIsCountedByTenantEndpointTierResultAndMode(t *testing.T) {
	m := New("1", Sources{})
	d := decided(t, "gold")
	d.Resolution.Endpoint = "GET /records/{id}"
	m.Observe(d)
	m.Observe(d)
	d.Deny(decision.Banned)
	m.Observe(d)
	const want = `endpoint="GET /records/{id}" mode="enforce" org_id="acme" result="allowed" tier="gold" 2
endpoint="GET /records/{id}" mode="enforce" org_id="acme" result="hard_throttled" tier="gold" 1`
	got := samples(t, m, "requests_total")
	assert.True(t, got == want, "counted\n%s\nwant\n%s", got, want)
}

func TestATenantHasItsOwnLabelAtOnceWhileThereIsRoom(t *testing.T) {
	m := NewWithTenants("1", Sources{}, TenantLabels{Busiest: 2, Always: []string{"vip"}})
	observe(m, 1, "a", "b", "c", "vip", "a")
	wantOrgs(t, m, map[string]float64{"a": 2, "b": 1, "vip": 1, "other": 1})
}

func TestNoTenantHasAnOwnLabelWhereThatIsNotWanted(t *testing.T) {
	m := NewWithTenants("1", Sources{}, TenantLabels{Busiest: -1, Always: []string{"vip"}})
	observe(m, 1, "a", "b", "vip")
	wantOrgs(t, m, map[string]float64{"vip": 1, "other": 2})
}

func TestABusierTenantTakesThePlaceOfTheLeastBusyAndNothingIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewWithTenants("1", Sources{}, TenantLabels{Busiest: 2})
		observe(m, 10, "a")
		observe(m, 5, "b")
		observe(m, 100, "c")
		wantOrgs(t, m, map[string]float64{"a": 10, "b": 5, "other": 100})

		time.Sleep(rotateEvery)
		wantOrgs(t, m, map[string]float64{"a": 10, "b": 5, "other": 100}) // c has a place, and has sent nothing since
		observe(m, 7, "c", "b")
		wantOrgs(t, m, map[string]float64{"a": 10, "b": 5, "c": 7, "other": 107}) // b's series stays, and grows no more

		time.Sleep(rotateEvery)
		wantOrgs(t, m, map[string]float64{"a": 10, "c": 7, "other": 107})
	})
}

func TestATenantThatComesBackWhileItLeavesGoesOnFromWhereItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewWithTenants("1", Sources{}, TenantLabels{Busiest: 1})
		observe(m, 1, "a")
		time.Sleep(idleAfter)
		wantOrgs(t, m, map[string]float64{"a": 1}) // it was last active an hour ago, and leaves
		observe(m, 1, "a")
		for range 3 {
			time.Sleep(rotateEvery)
			wantOrgs(t, m, map[string]float64{"a": 2})
		}
	})
}

func TestATenantLeavesWhenIdleForAnHourEvenIfItsPlaceIsNotNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewWithTenants("1", Sources{}, TenantLabels{Busiest: 2, Always: []string{"vip"}})
		observe(m, 1, "a", "b", "vip")
		for range int(idleAfter/rotateEvery) + 2 { // found by the first rotation, gone one after its hour
			observe(m, 1, "b")
			time.Sleep(rotateEvery)
			byOrg(t, m)
		}
		counts := byOrg(t, m)
		if _, ok := counts["a"]; ok || counts["b"] < 60 || counts["vip"] != 1 {
			t.Errorf("after an hour there are %v, want only b and vip", counts)
		}
		observe(m, 1, "c")
		if counts := byOrg(t, m); counts["c"] != 1 {
			t.Errorf("with room again there are %v, want c among them", counts)
		}
	})
}

func TestTenantsThatSendAsMuchAsEachOtherDoNotChangePlacesAllTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tenants, rounds = 2000, 20
		m := NewWithTenants("1", Sources{}, TenantLabels{Busiest: 100})
		var ids []string
		for i := range tenants {
			ids = append(ids, strconv.Itoa(i))
		}
		everSeen := map[string]bool{}
		for range rounds {
			observe(m, 3, ids...)
			time.Sleep(rotateEvery)
			for id := range byOrg(t, m) {
				everSeen[id] = true
			}
		}
		assert.True(t, len(everSeen) <= 150, "%d tenants had labels of their own, want hardly more than 100", len(everSeen))
	})
}

func TestABusyTenantIsFoundAmongAnyNumberOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, step := range []int{0, 1000} { // 1,000 others come before the busy one each minute: the same, or new ones
			m := NewWithTenants("1", Sources{}, TenantLabels{Busiest: 4})
			for minute := range 4 {
				for i := range 1000 {
					observe(m, 3, strconv.Itoa(minute*step+i))
				}
				observe(m, 50, "busy")
				time.Sleep(rotateEvery)
				byOrg(t, m)
				observe(m, 50, "busy")
			}
			assert.NotZero(t, byOrg(t, m)["busy"], "requests of the busy tenant by its label")
		}
	})
}

func TestATenantThatIsCountedWhileItGetsALabelTakesNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewWithTenants("1", Sources{}, TenantLabels{Busiest: 2})
		observe(m, 1, "a", "b")
		for range 10 {
			m.tenants.candidates.count("b") // by a request that began before
		}
		time.Sleep(rotateEvery)
		byOrg(t, m)
		observe(m, 1, "a", "b")
		wantOrgs(t, m, map[string]float64{"a": 2, "b": 2})
	})
}

func TestTenantsWithoutAUsableNameAreOtherAndAnonymousRequestsAreNone(t *testing.T) {
	long := strings.Repeat("x", nameBytes+1)
	labels := TenantLabels{Always: []string{"other", "\xff", long, "fine"}}
	err := labels.Validate()
	if err == nil || strings.Count(err.Error(), "\n") != 2 || strings.Contains(err.Error(), "fine") {
		t.Errorf("faults are %v, want one for each but the last", err)
	}
	m := NewWithTenants("1", Sources{}, labels)
	observe(m, 1, "other", "(none)", "", "\xff", "\xfe", long)
	observe(m, 1, "a\"\n\\b", "ünïcode")
	d := new(decision.Decision)
	d.Reset()
	m.Observe(d)
	d.Identity.Tenant = identity.Name{Kind: identity.IP, ID: "192.0.2.7"}
	m.Observe(d)
	wantOrgs(t, m, map[string]float64{"a\"\n\\b": 1, "ünïcode": 1, "other": 6, "(none)": 2})
}

func TestEndpointsThatAreShownAlikeAreOneSeries(t *testing.T) {
	m := New("1", Sources{})
	d := decided(t, "gold")
	for _, endpoint := range []string{"/\xff", "/\xfe", "/\uFFFD", "(none)", ""} {
		d.Resolution.Endpoint = endpoint
		m.Observe(d)
		m.Observe(d)
	}
	const want = "endpoint=\"(none)\" mode=\"enforce\" org_id=\"acme\" result=\"allowed\" tier=\"gold\" 4\n" +
		"endpoint=\"/\uFFFD\" mode=\"enforce\" org_id=\"acme\" result=\"allowed\" tier=\"gold\" 6"
	got := samples(t, m, "requests_total")
	assert.True(t, got == want, "counted\n%s\nwant\n%s", got, want)
}

func TestTenantsThatComeAndGoAtOnceAreAllCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const senders, each = 8, 2000
		m := NewWithTenants("1", Sources{}, TenantLabels{Busiest: 10})
		var running sync.WaitGroup
		for s := range senders {
			running.Go(func() {
				for i := range each {
					observe(m, 1, strconv.Itoa(i%(s*5+1)))
				}
			})
		}
		running.Go(func() {
			for range 3 {
				byOrg(t, m)
			}
		})
		running.Wait()
		total := 0.0
		for _, n := range byOrg(t, m) {
			total += n
		}
		assert.True(t, total == senders*each, "%v requests are counted, want %d", total, senders*each)
		time.Sleep(rotateEvery) // a tenant that leaves now is still shown
		after := 0.0
		for _, n := range byOrg(t, m) {
			after += n
		}
		assert.True(t, after == total, "%v requests are counted after a rotation, want %v", after, total)
	})
}
