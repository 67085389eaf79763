package usage

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func sketchOf(from, to int) (s Sketch) {
	for i := from; i < to; i++ {
		s.add(fmt.Sprintf("203.0.%d.%d", i/256, i%256))
	}
	return s
}

// The standard error is 9 %: a mistake in a formula gives far more than four times that.
func TestASketchEstimatesDifferentNames(t *testing.T) {
	for _, n := range []int{0, 1, 2, 10, 100, 300, 1000, 10_000, 60_000} {
		s := sketchOf(0, n)
		if got := s.Estimate(); math.Abs(float64(got-int64(n))) > 0.36*float64(n) {
			t.Errorf("%d names are estimated as %d", n, got)
		}
	}
}

func TestAnEstimateOfNamesThatAreMadeForItIsBounded(t *testing.T) {
	var s Sketch
	for i := range s {
		s[i] = maxRank
	}
	assert.EqualValues(t, maxCount, s.Estimate(), "the estimate")
}

func TestMergedSketchesAreThatOfAllNames(t *testing.T) {
	left, right, all := sketchOf(0, 700), sketchOf(400, 1000), sketchOf(0, 1000)
	if left.Merge(&right); left != all {
		t.Error("a merged sketch is not that of the names of both")
	}
}

func TestASketchIsReadAsItWasWritten(t *testing.T) {
	s := sketchOf(0, 90)
	var read Sketch
	require.NoError(t, read.ScanBytes(s[:]))
	assert.Equal(t, s, read)
	for _, damaged := range [][]byte{nil, s[:][1:], append(s[:][1:], maxRank+1)} {
		require.NoError(t, read.ScanBytes(damaged))
		assert.Equal(t, Sketch{}, read, "a sketch of another program")
	}
}

func TestDenialsCountByWhatDenied(t *testing.T) {
	byShared := decided(t, "acme", "GET /x", answered{daily, 1, denies(0)})
	byShared.Resolution.Bounds[0].Key.Group = policy.ByAll
	byPenalty := decided(t, "acme", "GET /x", answered{daily, 1, denies(0)}, answered{minute, 1, admits(1)})
	byPenalty.Resolution.Bounds[0].Penalty = 7
	byBoth := decided(t, "acme", "GET /x", answered{daily, 1, denies(0)}, answered{minute, 1, denies(0)})
	byBoth.Resolution.Bounds[0].Penalty = 7
	banned := decided(t, "acme", "GET /x")
	banned.Deny(decision.Banned)
	meta := decided(t, "acme", "GET /x")
	meta.Deny(decision.MetaLimited)
	byNodeShare := decided(t, "acme", "GET /x", answered{daily, 1, denies(0)})
	byNodeShare.Statuses[0].Source = decision.Local
	byNodeShareToo := decided(t, "acme", "GET /x", answered{daily, 1, denies(0)}, answered{minute, 1, denies(0)})
	byNodeShareToo.Statuses[0].Source = decision.Local
	limited, unanswered := Denials{Tenant: "acme", Limited: 1}, Denials{Tenant: "acme", Unavailable: 1}
	for name, test := range map[string]struct {
		d    *decision.Decision
		want Denials
	}{
		"admitted":            {decided(t, "acme", "GET /x", answered{daily, 1, admits(9)}), Denials{}},
		"denied by a limit":   {decided(t, "acme", "GET /x", answered{daily, 1, denies(0)}), limited},
		"denied in shadow":    {decided(t, "acme", "GET /x", answered{trial, 1, denies(0)}), Denials{}},
		"denied by fail mode": {decided(t, "acme", "GET /x", answered{closed, 1, unavailable}), unanswered},
		"denied by a node's share of a limit while Redis is away":   {byNodeShare, unanswered},
		"denied by a node's share of a limit, and by another limit": {byNodeShareToo, limited},
		"denied by a ban":                              {banned, Denials{}},
		"denied by meta_limit":                         {meta, limited},
		"denied without tenant":                        {decided(t, "", "GET /x", answered{daily, 1, denies(0)}), Denials{}},
		"denied by a limit that a penalty has lowered": {byPenalty, Denials{Tenant: "acme", Limited: 1, Penalized: 1}},
		"denied by a penalty and by another limit":     {byBoth, limited},
		"denied by a limit that tenants share":         {byShared, Denials{}},
	} {
		c := NewCounter()
		c.Observe(test.d)
		var got Denials
		if all := c.cutDenials(); len(all) > 0 {
			got = all[0]
		}
		assert.Equal(t, test.want, got, "a request %s counts as", name)
	}
}

func TestDenialsCountDifferentNamesOverAllConnections(t *testing.T) {
	c := NewCounter()
	d := decided(t, "acme", "GET /x", answered{daily, 1, denies(0)})
	for i := range 3000 {
		d.Exchange = uint32(i)
		d.Identity.User = identity.Name{Kind: identity.User, ID: fmt.Sprint("user-", i%300)}
		d.Identity.IP = fmt.Sprint("192.0.2.", i%10)
		d.Identity.Credential = "key"
		c.Observe(d)
	}
	all := c.cutDenials()
	if len(all) != 1 || all[0].Limited != 3000 {
		t.Fatalf("denials are %+v", all)
	}
	users, addresses, credentials := all[0].Users.Estimate(), all[0].Addresses.Estimate(), all[0].Credentials.Estimate()
	if users < 200 || users > 400 || addresses < 8 || addresses > 12 || credentials != 1 {
		t.Errorf("%d users, %d addresses, %d credentials; want about 300, 10, 1", users, addresses, credentials)
	}
	if again := c.cutDenials(); len(again) > 0 || c.denied.Load() != 0 {
		t.Errorf("a second cut has %+v", again)
	}
}

func TestDenialsOfManyTenantsAreBounded(t *testing.T) {
	c := NewCounter()
	for i := range maxDenied + 9 {
		c.Observe(decided(t, fmt.Sprint("tenant-", i), "GET /x", answered{daily, 1, denies(0)}))
	}
	if n := len(c.cutDenials()); n != maxDenied || c.Dropped() != 9 {
		t.Errorf("%d tenants have denials, %d were dropped", n, c.Dropped())
	}
}

func TestCountingADenialAllocatesNothing(t *testing.T) {
	c := NewCounter()
	d := decided(t, "acme", "GET /x", answered{daily, 1, denies(0)})
	d.Identity.IP, d.Identity.Credential = "192.0.2.1", "key"
	c.Observe(d)
	if n := testing.AllocsPerRun(100, func() { c.Observe(d) }); n > 0 {
		t.Errorf("it allocates %v times", n)
	}
}

// Every denial reaches a batch once, however they are split.
func TestDenialsThatDoNotFitIntoABatchFollowInTheNext(t *testing.T) {
	c := NewCounter()
	const tenants = MaxDenials + 100
	for i := range tenants {
		c.Observe(decided(t, fmt.Sprint("tenant-", i), "GET /x", answered{daily, 1, denies(0)}))
	}
	s := newShelf()
	log, _ := logged()
	r := NewReporter(ReporterOptions{Counter: c, Sink: s, Log: log})
	r.cut()
	seen := map[string]int64{}
	for _, w := range r.queue {
		var b Batch
		require.NoError(t, b.UnmarshalBinary(w.Payload))
		for _, n := range b.Denials {
			seen[n.Tenant] += n.Limited
		}
	}
	for i := range tenants {
		require.EqualValues(t, 1, seen[fmt.Sprint("tenant-", i)], "tenant-%d has denials in %d batches", i, len(r.queue))
	}
}
