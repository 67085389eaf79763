package metrics

import (
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	buckets "github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/redis"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// family is how many series a family has, and what they add up to.
func family(t *testing.T, m *Metrics, name string) (series int, sum float64) {
	t.Helper()
	families, err := m.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == prefix+name {
			for _, metric := range f.GetMetric() {
				series, sum = series+1, sum+metric.GetCounter().GetValue()
			}
		}
	}
	return series, sum
}

func TestNamesBeyondTheCeilingAreOtherAndNoneIsLost(t *testing.T) {
	const names = 10 * maxSeries
	m := New("1", Sources{})
	d := decided(t, "gold", answered{policy.Policy{Scope: policy.Tenant}, denies},
		answered{policy.Policy{Scope: policy.Tenant, FailMode: policy.FailOpen}, unanswered})
	for i := range names {
		for j := range d.Resolution.Bounds {
			d.Resolution.Bounds[j].Policy.Name = "p" + strconv.Itoa(i)
		}
		d.Resolution.Tier = "t" + strconv.Itoa(i)
		m.Observe(d)
	}
	for _, name := range []string{"denials_total", "requests_total"} {
		if series, sum := family(t, m, name); series != maxSeries+1 || sum != names {
			t.Errorf("%s has %d series that add up to %v, want %d and %d", name, series, sum, maxSeries+1, names)
		}
	}
	if allocations := testing.AllocsPerRun(100, func() { m.Observe(d) }); allocations != 0 {
		t.Errorf("%v allocations for a name beyond the ceiling, want 0", allocations)
	}
}

func TestOurOwnWordsStayWhatTheyAreBeyondTheCeiling(t *testing.T) {
	m := New("1", Sources{})
	for i := range maxSeries {
		m.denials.with(strconv.Itoa(i), none, none)
		m.unverified.with(strconv.Itoa(i), "local")
		m.unavailable.with(strconv.Itoa(i))
	}
	for range 2 { // the first makes the series, the second finds it
		m.denials.with("new", "user", "new").Inc()
		m.denials.with(reasonLabels[1], none, "new").Inc()
		m.unverified.with("new", "open").Inc()
		m.unavailable.with("new").Inc()
	}
	const want = `denials_total{policy="(tenant_missing)",scope="(none)",tier="other"} 2
denials_total{policy="other",scope="user",tier="other"} 2
unavailable_total{policy="other"} 2
unverified_total{fail_mode="open",policy="other"} 2
`
	got := counted(t, m)
	assert.True(t, got == want, "counted\n%s\nwant\n%s", got, want)
}

func TestManyRequestsAtOnceAreAllCounted(t *testing.T) {
	const goroutines, each = 8, 3 * maxSeries
	m := New("1", Sources{})
	var running sync.WaitGroup
	for range goroutines {
		running.Go(func() {
			for i := range each {
				m.unavailable.with(strconv.Itoa(i)).Inc()
			}
		})
	}
	running.Wait()
	if series, sum := family(t, m, "unavailable_total"); series != maxSeries+1 || sum != goroutines*each {
		t.Errorf("%d series that add up to %v, want %d and %d", series, sum, maxSeries+1, goroutines*each)
	}
}

func TestNamesThatAreNotTextAreCountedAllTheSame(t *testing.T) {
	stores := []buckets.Stats{
		{Name: "\xff", Redis: redis.Stats{Foreign: 1}}, {Name: "\xfe", Redis: redis.Stats{Foreign: 2}},
	}
	m := withNumbers(of(stores))
	m.unavailable.with("a\xff\"\n").Inc()
	const want = `foreign_values_total{store="` + "\uFFFD" + `"} 3
unavailable_total{policy="a` + "\uFFFD" + `\"\n"} 1
`
	got := counted(t, m)
	assert.True(t, got == want, "counted\n%s\nwant\n%s", got, want)
}
