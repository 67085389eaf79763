package spec

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

const (
	// quota is the limit of each tenant in a fault spec. It refills within a year, so not during the spec.
	quota = 1200
	// settled is the number of decisions in a row, of every lane of a storm or about, after which a switch is over.
	settled = 50
	// deadAfter is the time without an answer after which Redis servers take another for dead. A busy machine may stop one
	// for a while.
	deadAfter = 2 * time.Second
)

// pressure is load on some tenants by two plugin processes, which continues until it is stopped. One half of the
// requests is of one user and the other of new ones, so that requests need existing and new keys.
type pressure struct {
	*fleet
	members  []*member
	instance []int32 // of each member
	tenants  []string
	traffic  map[string][]*traffic
}

// pressOn starts pressure through new plugin processes. redis has settings of the redis block of their config, as JSON.
func pressOn(t *testing.T, redis string, tenants []string) *pressure {
	t.Helper()
	p := &pressure{fleet: onRedis(t, redis), tenants: tenants, traffic: map[string][]*traffic{}}
	p.members = p.joinAll(2)
	limits := fmt.Sprintf(`{"name":"year","scope":"tenant","limit":%d,"window_size":31536000},
		{"name":"each","scope":"credential","limit":%[1]d,"window_size":31536000}`, quota)
	for _, m := range p.members {
		p.instance = append(p.instance, m.open(`"accuracy":"exact",`, limits))
	}
	// Half of a quota lasts until the switch is over, however long that takes on a busy machine.
	p.press(func(n int) time.Duration {
		return time.Duration(n)*5*time.Millisecond + time.Duration(max(0, n-quota/4))*145*time.Millisecond
	})
	return p
}

// press adds traffic to each tenant: of one user, and of new ones.
func (p *pressure) press(at schedule) {
	for _, tenant := range p.tenants {
		for _, newUsers := range []bool{false, true} {
			tr := p.offer(by(tenant), at)
			tr.newUsers = newUsers
			for i, m := range p.members {
				tr.to(m, p.instance[i], 1)
			}
			p.traffic[tenant] = append(p.traffic[tenant], tr)
		}
	}
}

// samples returns the samples of a tenant so far, in the order of their answers.
func (p *pressure) samples(tenant string) (all []sample) {
	for _, tr := range p.traffic[tenant] {
		tr.mu.Lock()
		all = append(all, tr.samples...)
		tr.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b sample) int { return cmp.Compare(a.Answered, b.Answered) })
	return all
}

// awaitDecisions waits until, from now on, the last requests of every tenant were all decided, as many as two processes
// have in a while.
func (p *pressure) awaitDecisions(what string) {
	p.t.Helper()
	now := p.since()
	await.That(p.t, what, func() bool {
		return !slices.ContainsFunc(p.tenants, func(tenant string) bool {
			all := p.samples(tenant)
			last := all[max(0, len(all)-2*settled):]
			return len(last) < 2*settled || last[0].Sent < now || counted(last, http.StatusServiceUnavailable) > 0
		})
	})
}

// awaitDenials waits until every tenant has been denied after an instant: its quota is exhausted.
func (p *pressure) awaitDenials(after time.Duration) {
	p.t.Helper()
	p.press(steady(200))
	await.That(p.t, "every quota to be exhausted", func() bool {
		return !slices.ContainsFunc(p.tenants, func(tenant string) bool {
			all := p.samples(tenant)
			last := all[len(all)-1]
			return last.Status != http.StatusTooManyRequests || last.Sent < after
		})
	})
}

// span is the time of a fault.
type span struct{ From, To time.Duration }

// always is longer than any spec.
var always = span{0, time.Hour}

// count returns the number of a tenant's requests with a status that were in flight within a span.
func (p *pressure) count(tenant string, status int, within span) int {
	return counted(slices.DeleteFunc(p.samples(tenant), func(v sample) bool {
		return v.Answered < within.From || v.Sent > within.To
	}), status)
}

// fault describes the fault of Redis.
type fault struct {
	affects  func(tenant string) bool // whether the buckets of a tenant moved
	switched span                     // from the fault until all processes decided again
	lost     span                     // of answers that may be lost with a killed master; zero: none was killed
}

// check ends the pressure, and compares the answers with the promises: the admissions of a tenant are at most its quota
// plus those that may be lost with a killed master, and at least the quota without undecided requests. Only affected
// tenants had undecided requests, and only within the switch.
func (p *pressure) check(f fault) {
	p.t.Helper()
	const admits, denies, undecided = http.StatusOK, http.StatusTooManyRequests, http.StatusServiceUnavailable
	for _, tenant := range p.tenants {
		for _, tr := range p.traffic[tenant] {
			tr.stop()
		}
		admitted, open, inside := p.count(tenant, admits, always), p.count(tenant, undecided, always),
			p.count(tenant, undecided, f.switched)
		affected, most := f.affects(tenant), quota
		if affected && f.lost.To > 0 {
			most += p.count(tenant, admits, f.lost)
		}
		p.t.Logf("%s, affected: %t: %d admitted, at most %d allowed, %d undecided", tenant, affected, admitted, most, open)
		if admitted > most || admitted+open < quota {
			p.t.Errorf("%s: %d admitted and %d undecided; the quota is %d, at most %d are allowed", tenant, admitted, open, quota,
				most)
		}
		if !affected && open > 0 || inside != open {
			p.t.Errorf("%s, affected: %t: %d requests undecided, %d outside of the switch", tenant, affected, open, open-inside)
		}
		if affected && (p.count(tenant, admits, span{0, f.switched.From}) == 0 ||
			p.count(tenant, admits, span{f.switched.To, time.Hour}) == 0) {
			p.t.Errorf("%s: nothing was admitted before or after the switch", tenant)
		}
		if all := p.samples(tenant); len(all) != open+admitted+p.count(tenant, denies, always) {
			p.t.Errorf("%s: requests were answered otherwise than with 429 and 503: %v", tenant, all)
		}
	}
}

// clustered is a cluster under pressure.
type clustered struct {
	*pressure
	nodes   *redisCluster
	masters map[string]*redistest.Server // tenant → its master at the start
}

// bucketKey returns the key of a tenant's buckets.
func bucketKey(tenant string) string { return "rl:default:{t=" + tenant + "}" }

// pressCluster presses on two tenants of each of three masters.
func pressCluster(t *testing.T) clustered {
	t.Helper()
	nodes := &redisCluster{redistest.Cluster(t, 3, 1)} // three masters, three replicas
	nodes.KeepHealthySlots(t)
	nodes.SetNodeTimeout(t, deadAfter)
	masters, count := map[string]*redistest.Server{}, map[*redistest.Server]int{}
	var tenants []string
	for i := 0; len(tenants) < 2*len(nodes.Masters); i++ {
		tenant := fmt.Sprint("tenant-", i)
		if master := nodes.MasterOf(t, bucketKey(tenant)); count[master] < 2 {
			count[master]++
			masters[tenant], tenants = master, append(tenants, tenant)
		}
	}
	var addresses []string
	for _, s := range nodes.Masters {
		addresses = append(addresses, fmt.Sprintf(`{"ip":%q,"port":%d}`, s.Host, s.Port))
	}
	return clustered{
		pressOn(t,
			fmt.Sprintf(`%s,"pipeline":true,"cluster_nodes":[%s]`, patience, strings.Join(addresses, ",")), tenants),
		nodes, masters,
	}
}

// isAffected reports whether a tenant has the same master as the first tenant.
func (c clustered) isAffected(tenant string) bool {
	return c.masters[tenant] == c.masters[c.tenants[0]]
}

func TestAKilledMasterOfAClusterLosesOnlyUnreplicatedAdmissions(t *testing.T) {
	t.Parallel()
	c := pressCluster(t)
	c.awaitDecisions("load")
	key := bucketKey(c.tenants[0])
	master := c.nodes.MasterOf(t, key)
	replica := c.nodes.ReplicaOf(t, master)

	// A master answers before its replica has the write. The replica has all writes from before Replicate. So only
	// admissions between Replicate and the kill can be lost.
	lost := span{From: c.since()}
	replicate(t, master, key+"-")
	killed := c.since()
	master.Kill()
	lost.To = c.since()

	c.nodes.AwaitMaster(t, key, replica)
	c.awaitDecisions("decisions by the replica")
	switched := span{killed, c.since()}
	c.awaitDenials(switched.To)
	c.check(fault{c.isAffected, switched, lost})
	if c.count(c.tenants[0], 503, switched) == 0 {
		t.Error("every request was decided: no master was killed under load")
	}
}

func TestChaosAPlannedFailoverOfAClusterLosesNoAdmission(t *testing.T) {
	t.Parallel()
	c := pressCluster(t)
	c.awaitDecisions("load")
	key := bucketKey(c.tenants[0])
	replica := c.nodes.ReplicaOf(t, c.nodes.MasterOf(t, key))
	switched := span{From: c.since()}
	c.nodes.FailOver(t, key, replica)
	c.awaitDecisions("decisions by the replica")
	switched.To = c.since()
	c.awaitDenials(switched.To)
	c.check(fault{affects: c.isAffected, switched: switched})
}

func TestChaosASlotOfAClusterMovesWhileItsTenantIsCountedExactly(t *testing.T) {
	t.Parallel()
	c := pressCluster(t)
	c.awaitDecisions("load")
	moved := c.tenants[0]
	var to *redistest.Server
	for _, tenant := range c.tenants {
		if !c.isAffected(tenant) {
			to = c.masters[tenant]
		}
	}
	switched := span{From: c.since()}
	c.nodes.Migrate(t, bucketKey(moved), to, func() {
		n := len(c.samples(moved))
		await.That(t, "requests while the slot moves", func() bool { return len(c.samples(moved)) > n+settled })
	})
	c.awaitDecisions("decisions by the new master")
	switched.To = c.since()
	c.awaitDenials(switched.To)
	c.check(fault{affects: func(tenant string) bool { return tenant == moved }, switched: switched})
}

func TestChaosAKilledMasterOfSentinelsLosesOnlyUnreplicatedAdmissions(t *testing.T) {
	t.Parallel()
	watched := &redisSentinels{redistest.Sentinel(t)}
	watched.SetDownAfter(t, deadAfter)
	var addresses []string
	for _, s := range watched.Sentinels {
		addresses = append(addresses, fmt.Sprintf(`{"host":%q,"port":%d}`, s.Host, s.Port))
	}
	p := pressOn(t, fmt.Sprintf(`%s,"pipeline":true,"sentinel_master":%q,"sentinel_nodes":[%s]`,
		patience, redistest.MasterName, strings.Join(addresses, ",")), []string{"alice", "beth", "gus"})
	p.awaitDecisions("load")
	lost := span{From: p.since()} // as in a cluster
	replicate(t, watched.Master, "last")
	killed := p.since()
	watched.Master.Kill()
	lost.To = p.since()

	watched.AwaitMaster(t, watched.Replica)
	p.awaitDecisions("decisions by the successor")
	switched := span{killed, p.since()}
	p.awaitDenials(switched.To)
	p.check(fault{func(string) bool { return true }, switched, lost})
	if p.count("alice", 503, switched) == 0 {
		t.Error("every request was decided: no master was killed under load")
	}
}
