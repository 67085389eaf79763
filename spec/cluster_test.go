package spec

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

const (
	// quota is the limit of each tenant in a fault spec. It refills within a year, so not during the spec.
	quota = 1200
	// settled is the number of decisions in a row, of every process for every tenant, after which the switch is over.
	settled = 50
	// deadAfter is the time without an answer after which Redis servers take another for dead. A busy machine may stop one
	// for a while.
	deadAfter = 2 * time.Second
)

// verdict is the outcome of one request, which was decided at some instant from Sent to Answered.
type verdict struct {
	Sent, Answered time.Duration
	Status         int // 0: admitted; 429: denied; 503: not decided
}

// caller is one plugin process with the requests of one tenant.
type caller struct {
	tenant  string
	process int
}

// pressure is load that continues until it is stopped: on some tenants, by two plugin processes with two connections
// for each. One connection is always the same user, the other a new one with every request, so that requests need
// existing and new keys.
type pressure struct {
	t       *testing.T
	begun   time.Time
	tenants []string
	stop    context.CancelFunc
	drivers sync.WaitGroup

	mu       sync.Mutex
	verdicts map[string][]verdict // by tenant
	inARow   map[caller]int       // decisions since the last undecided request
	rushed   bool                 // the switch is over: the drivers use up the quotas
}

// pressOn starts pressure through new plugin processes. redis is the redis block of their config, as JSON.
func pressOn(t *testing.T, redis string, tenants []string) *pressure {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	p := &pressure{
		t: t, begun: time.Now(), tenants: tenants, stop: stop, verdicts: map[string][]verdict{},
		inARow: map[caller]int{},
	}
	config := fmt.Sprintf(`{"__seq__":1,"__plugin_id":"p","strategy":"redis","accuracy":"exact","redis":%s,
		"fail_mode":"closed","tiers":[{"name":"a","limits":[
		{"name":"year","scope":"tenant","limit":%d,"window_size":31536000},
		{"name":"each","scope":"credential","limit":%[2]d,"window_size":31536000}]}]}`, redis, quota)
	for process := range 2 {
		prefix, err := os.MkdirTemp("", "k")
		require.NoError(t, err)
		t.Cleanup(func() { os.RemoveAll(prefix) })
		startPlugin(t, prefix)
		t.Cleanup(p.end) // before the process ends
		socket := filepath.Join(prefix, "tenant-rate-limiting.socket")
		id := startInstance(t, socket, config)
		for _, tenant := range tenants {
			for connection := range 2 {
				p.drivers.Go(func() {
					if err := p.drive(ctx, socket, id, caller{tenant, process}, connection == 1); err != nil {
						t.Errorf("an event failed, which Kong replays or answers with 500: %v", err)
					}
				})
			}
		}
	}
	return p
}

// end stops the pressure and waits until it is over.
func (p *pressure) end() {
	p.stop()
	p.drivers.Wait()
}

// drive runs events until ctx ends. After an error Kong would run the event once more, or answer 500.
func (p *pressure) drive(ctx context.Context, socket string, id int32, who caller, newUsers bool) error {
	request := gateway.Request{
		Consumer: &gateway.Consumer{ID: "c", Username: who.tenant}, RemoteAddr: "127.0.0.1:1",
		CredentialID: "k",
	}
	pace := time.NewTicker(10 * time.Millisecond)
	defer pace.Stop()
	var c *gateway.Conn
	for n := 0; ctx.Err() == nil; n++ {
		if c == nil {
			var err error
			if c, err = gateway.Dial(socket); err != nil {
				return err
			}
		}
		for waits := p.waits(who.tenant); waits > 0 && ctx.Err() == nil; waits-- {
			<-pace.C
		}
		if newUsers {
			request.CredentialID = fmt.Sprint("k", who.process, "-", n)
		}
		sent := time.Since(p.begun)
		outcome, err := c.HandleEvent(id, "access", request)
		if err != nil {
			return err
		}
		v := verdict{Sent: sent, Answered: time.Since(p.begun)}
		if outcome.Exit != nil {
			v.Status, c = outcome.Exit.Status, nil // an exit closes the connection
		}
		p.note(who, v)
	}
	if c == nil {
		return nil
	}
	return c.Close()
}

// waits returns the number of ticks before the next request of a tenant. Half of its quota lasts until the switch is
// over, however long that takes on a busy machine.
func (p *pressure) waits(tenant string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.verdicts[tenant]) < quota/2 || p.rushed {
		return 1
	}
	return 30
}

// note adds a verdict.
func (p *pressure) note(who caller, v verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.verdicts[who.tenant] = append(p.verdicts[who.tenant], v)
	if p.inARow[who]++; v.Status == 503 {
		p.inARow[who] = 0
	}
}

// awaitDecisions waits until, from now on, every process has decided settled requests in a row for every tenant.
func (p *pressure) awaitDecisions(what string) {
	p.t.Helper()
	p.mu.Lock()
	clear(p.inARow)
	p.mu.Unlock()
	await.That(p.t, what, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, n := range p.inARow {
			if n < settled {
				return false
			}
		}
		return len(p.inARow) == 2*len(p.tenants)
	})
}

// awaitDenials waits until every tenant has been denied after an instant: its quota is exhausted.
func (p *pressure) awaitDenials(after time.Duration) {
	p.t.Helper()
	p.mu.Lock()
	p.rushed = true
	p.mu.Unlock()
	await.That(p.t, "every quota to be exhausted", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, tenant := range p.tenants {
			all := p.verdicts[tenant]
			if len(all) == 0 || all[len(all)-1].Status != 429 || all[len(all)-1].Sent < after {
				return false
			}
		}
		return true
	})
}

// span is the time of a fault.
type span struct{ From, To time.Duration }

// count returns the number of a tenant's requests with a status that were in flight within a span.
func (p *pressure) count(tenant string, status int, within span) int {
	n := 0
	for _, v := range p.verdicts[tenant] {
		if v.Status == status && v.Answered >= within.From && v.Sent <= within.To {
			n++
		}
	}
	return n
}

// fault describes the fault of Redis.
type fault struct {
	affects  func(tenant string) bool // whether the buckets of a tenant moved
	switched span                     // from the fault until all processes decided again
	lost     span                     // of answers that may be lost with a killed master; zero: none was killed
}

// check ends the pressure, and compares the verdicts with the promises.
func (p *pressure) check(f fault) {
	p.t.Helper()
	p.end()
	for _, tenant := range p.tenants {
		p.checkBound(tenant, f)
		p.checkDecisions(tenant, f)
	}
}

// always is longer than any spec.
var always = span{0, time.Hour}

// checkBound checks that the admissions of a tenant are at most its quota plus those that may be lost with a killed
// master. They are also at least the quota without undecided requests.
func (p *pressure) checkBound(tenant string, f fault) {
	p.t.Helper()
	admitted, undecided, most := p.count(tenant, 0, always), p.count(tenant, 503, always), quota
	if f.affects(tenant) && f.lost.To > 0 {
		most += p.count(tenant, 0, f.lost)
	}
	p.t.Logf("%s, affected: %t: %d admitted, at most %d allowed, %d undecided",
		tenant, f.affects(tenant), admitted, most, undecided)
	if admitted > most {
		p.t.Errorf("%s: %d admitted, at most %d allowed", tenant, admitted, most)
	}
	if admitted+undecided < quota {
		p.t.Errorf("%s: denied when %d were admitted and %d undecided; the quota is %d", tenant, admitted, undecided, quota)
	}
}

// checkDecisions checks that only affected tenants had undecided requests, and only within the switch.
func (p *pressure) checkDecisions(tenant string, f fault) {
	p.t.Helper()
	undecided := p.count(tenant, 503, always)
	switch inside := p.count(tenant, 503, f.switched); {
	case !f.affects(tenant) && undecided > 0:
		p.t.Errorf("%s: %d requests undecided, and its master was healthy", tenant, undecided)
	case inside != undecided:
		p.t.Errorf("%s: %d requests undecided outside of the switch", tenant, undecided-inside)
	}
	if f.affects(tenant) && (p.count(tenant, 0, span{0, f.switched.From}) == 0 ||
		p.count(tenant, 0, span{f.switched.To, time.Hour}) == 0) {
		p.t.Errorf("%s: nothing was admitted before or after the switch", tenant)
	}
	if all := len(p.verdicts[tenant]); all != undecided+p.count(tenant, 0, always)+p.count(tenant, 429, always) {
		p.t.Errorf("%s: requests were answered otherwise than with 429 and 503: %v", tenant, p.verdicts[tenant])
	}
}

// since returns the time on the clock of the verdicts.
func (p *pressure) since() time.Duration { return time.Since(p.begun) }

// clustered is a cluster under pressure.
type clustered struct {
	*pressure
	nodes   *redistest.Nodes
	masters map[string]*redistest.Server // tenant → its master at the start
}

// bucketKey returns the key of a tenant's buckets.
func bucketKey(tenant string) string { return "rl:default:{t=" + tenant + "}" }

// pressCluster presses on two tenants of each of three masters.
func pressCluster(t *testing.T) clustered {
	t.Helper()
	nodes := redistest.Cluster(t, 3, 1) // three masters, three replicas
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
			fmt.Sprintf(`{%s,"pipeline":true,"cluster_nodes":[%s]}`, patience, strings.Join(addresses, ",")), tenants),
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
	master.Replicate(t, key+"-")
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

func TestAPlannedFailoverOfAClusterLosesNoAdmission(t *testing.T) {
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

func TestASlotOfAClusterMovesWhileItsTenantIsCountedExactly(t *testing.T) {
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
		n := len(c.seen(moved))
		await.That(t, "requests while the slot moves", func() bool { return len(c.seen(moved)) > n+settled })
	})
	c.awaitDecisions("decisions by the new master")
	switched.To = c.since()
	c.awaitDenials(switched.To)
	c.check(fault{affects: func(tenant string) bool { return tenant == moved }, switched: switched})
}

// seen returns the verdicts on a tenant's requests so far.
func (p *pressure) seen(tenant string) []verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.verdicts[tenant]
}

func TestAKilledMasterOfSentinelsLosesOnlyUnreplicatedAdmissions(t *testing.T) {
	t.Parallel()
	watched := redistest.Sentinel(t)
	watched.SetDownAfter(t, deadAfter)
	var addresses []string
	for _, s := range watched.Sentinels {
		addresses = append(addresses, fmt.Sprintf(`{"host":%q,"port":%d}`, s.Host, s.Port))
	}
	p := pressOn(t, fmt.Sprintf(`{%s,"pipeline":true,"sentinel_master":%q,"sentinel_nodes":[%s]}`,
		patience, redistest.MasterName, strings.Join(addresses, ",")), []string{"alice", "beth", "gus"})
	p.awaitDecisions("load")
	lost := span{From: p.since()} // as in a cluster
	watched.Master.Replicate(t, "last")
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
