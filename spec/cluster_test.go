package spec

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

const (
	// quota is what each tenant may spend while a fault spec runs. It refills within a year, so not at all meanwhile.
	quota = 1200
	// settled is how many decisions in a row, of every process for every tenant, tell that the switch is over.
	settled = 50
)

// verdict is what a process made of one request, which it decided at some instant from Sent to Answered.
type verdict struct {
	Sent, Answered time.Duration
	Status         int // 0: admitted; 429: refused; 503: not decided
}

// caller is one of the plugin processes, asked for one tenant.
type caller struct {
	tenant  string
	process int
}

// pressure is load that goes on until it is stopped: on some tenants, by two plugin processes with two connections for
// each. One connection is always the same user, the other a new one with every request, so that a request needs keys
// that are there and keys that are not.
type pressure struct {
	t       *testing.T
	begun   time.Time
	tenants []string
	stop    context.CancelFunc
	drivers sync.WaitGroup

	mu       sync.Mutex
	verdicts map[string][]verdict // by tenant
	inARow   map[caller]int       // decisions since the last undecided request
}

// pressOn starts pressure through new plugin processes whose buckets are where redis, a JSON object, says.
func pressOn(t *testing.T, redis string, tenants []string) *pressure {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	p := &pressure{t: t, begun: time.Now(), tenants: tenants, stop: stop, verdicts: map[string][]verdict{}, inARow: map[caller]int{}}
	config := fmt.Sprintf(`{"__seq__":1,"__plugin_id":"p","strategy":"redis","accuracy":"exact","redis":%s,"fail_mode":"closed","tiers":[{"name":"a","limits":[
		{"name":"year","scope":"tenant","limit":%d,"window_size":31536000},
		{"name":"each","scope":"credential","limit":%[2]d,"window_size":31536000}]}]}`, redis, quota)
	for process := range 2 {
		prefix, err := os.MkdirTemp("", "k")
		if err != nil {
			t.Fatal(err)
		}
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
	request := gateway.Request{Consumer: &gateway.Consumer{ID: "c", Username: who.tenant}, RemoteAddr: "127.0.0.1:1", CredentialID: "k"}
	pace := time.NewTicker(5 * time.Millisecond) // so that the quota lasts longer than the switch
	defer pace.Stop()
	var c *gateway.Conn
	for n := 0; ctx.Err() == nil; n++ {
		if c == nil {
			var err error
			if c, err = gateway.Dial(socket); err != nil {
				return err
			}
		}
		<-pace.C
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
	await(p.t, what, func() bool {
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

// awaitRefusals waits until every tenant has been refused after an instant: its quota is used up.
func (p *pressure) awaitRefusals(after time.Duration) {
	p.t.Helper()
	await(p.t, "every quota to be used up", func() bool {
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

// span is a time that a fault lasts.
type span struct{ From, To time.Duration }

// count is how many of a tenant's requests had a status and were, at least in part, under way within a span.
func (p *pressure) count(tenant string, status int, within span) int {
	n := 0
	for _, v := range p.verdicts[tenant] {
		if v.Status == status && v.Answered >= within.From && v.Sent <= within.To {
			n++
		}
	}
	return n
}

// fault is what was done to Redis.
type fault struct {
	concerns func(tenant string) bool // whose buckets were touched
	switched span                     // from the fault until all processes decided again
	lost     span                     // when a killed master answered what may have died with it; zero: no master was killed
}

// check ends the pressure, and holds it against what is promised.
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

// checkBound checks that a tenant was admitted at most its quota, and what was admitted while a killed master's
// writes may have died with it. Nor may less than the quota be used: what was spent was admitted, or nobody knows.
func (p *pressure) checkBound(tenant string, f fault) {
	p.t.Helper()
	admitted, undecided, most := p.count(tenant, 0, always), p.count(tenant, 503, always), quota
	if f.concerns(tenant) && f.lost.To > 0 {
		most += p.count(tenant, 0, f.lost)
	}
	p.t.Logf("%s, concerned: %t: %d admitted, at most %d allowed, %d undecided", tenant, f.concerns(tenant), admitted, most, undecided)
	if admitted > most {
		p.t.Errorf("%s: %d admitted, at most %d allowed", tenant, admitted, most)
	}
	if admitted+undecided < quota {
		p.t.Errorf("%s: refused when %d were admitted and %d undecided; the quota is %d", tenant, admitted, undecided, quota)
	}
}

// checkDecisions checks that only tenants whom the fault concerns had undecided requests, and only within the switch.
func (p *pressure) checkDecisions(tenant string, f fault) {
	p.t.Helper()
	undecided := p.count(tenant, 503, always)
	switch inside := p.count(tenant, 503, f.switched); {
	case !f.concerns(tenant) && undecided > 0:
		p.t.Errorf("%s: %d requests undecided, and its master was healthy", tenant, undecided)
	case inside != undecided:
		p.t.Errorf("%s: %d requests undecided outside of the switch", tenant, undecided-inside)
	}
	if f.concerns(tenant) && (p.count(tenant, 0, span{0, f.switched.From}) == 0 || p.count(tenant, 0, span{f.switched.To, time.Hour}) == 0) {
		p.t.Errorf("%s: nothing was admitted before or after the switch", tenant)
	}
	if all := len(p.verdicts[tenant]); all != undecided+p.count(tenant, 0, always)+p.count(tenant, 429, always) {
		p.t.Errorf("%s: requests were answered otherwise than with 429 and 503: %v", tenant, p.verdicts[tenant])
	}
}

// since is the time on the clock of the verdicts.
func (p *pressure) since() time.Duration { return time.Since(p.begun) }

// clustered is a cluster under pressure.
type clustered struct {
	*pressure
	nodes *redistest.Nodes
	owner map[string]*redistest.Server // tenant → its master at the beginning
}

// bucketKey is the key of a tenant's own buckets.
func bucketKey(tenant string) string { return "rl:default:{t=" + tenant + "}" }

// pressCluster presses on two tenants of each of three masters.
func pressCluster(t *testing.T) clustered {
	t.Helper()
	nodes := redistest.Cluster(t, 3, 1) // three masters, three replicas
	nodes.KeepHealthySlots(t)
	owner, have := map[string]*redistest.Server{}, map[*redistest.Server]int{}
	var tenants []string
	for i := 0; len(tenants) < 2*len(nodes.Masters); i++ {
		tenant := fmt.Sprint("tenant-", i)
		if master := nodes.MasterOf(t, bucketKey(tenant)); have[master] < 2 {
			have[master]++
			owner[tenant], tenants = master, append(tenants, tenant)
		}
	}
	var known []string
	for _, s := range nodes.Masters {
		known = append(known, fmt.Sprintf(`{"ip":%q,"port":%d}`, s.Host, s.Port))
	}
	return clustered{pressOn(t, fmt.Sprintf(`{"send_timeout":10000,"read_timeout":10000,"pipeline":true,"cluster_nodes":[%s,%s,%s]}`, known[0], known[1], known[2]), tenants), nodes, owner}
}

// concerned tells whose requests go to the master of the first tenant.
func (c clustered) concerned(tenant string) bool { return c.owner[tenant] == c.owner[c.tenants[0]] }

func TestAKilledMasterOfAClusterLosesOnlyUnreplicatedAdmissions(t *testing.T) {
	c := pressCluster(t)
	c.awaitDecisions("load")
	key := bucketKey(c.tenants[0])
	master := c.nodes.MasterOf(t, key)
	replica := c.nodes.ReplicaOf(t, master)

	// A master answers before its replica has the write. What it was written before Replicate began the replica has,
	// what it answered before it was killed is counted here: so only what was admitted in between can be lost.
	lost := span{From: c.since()}
	master.Replicate(t, key+"-")
	killed := c.since()
	master.Kill()
	lost.To = c.since()

	c.nodes.AwaitMaster(t, key, replica)
	c.awaitDecisions("decisions by the replica")
	switched := span{killed, c.since()}
	c.awaitRefusals(switched.To)
	c.check(fault{c.concerned, switched, lost})
	if c.count(c.tenants[0], 503, switched) == 0 {
		t.Error("every request was decided: no master was killed under load")
	}
}

func TestAPlannedFailoverOfAClusterLosesNoAdmission(t *testing.T) {
	c := pressCluster(t)
	c.awaitDecisions("load")
	key := bucketKey(c.tenants[0])
	replica := c.nodes.ReplicaOf(t, c.nodes.MasterOf(t, key))
	switched := span{From: c.since()}
	c.nodes.FailOver(t, key, replica)
	c.awaitDecisions("decisions by the replica")
	switched.To = c.since()
	c.awaitRefusals(switched.To)
	c.check(fault{concerns: c.concerned, switched: switched})
}

func TestASlotOfAClusterMovesWhileItsTenantIsCountedExactly(t *testing.T) {
	c := pressCluster(t)
	c.awaitDecisions("load")
	moved := c.tenants[0]
	var to *redistest.Server
	for _, tenant := range c.tenants {
		if !c.concerned(tenant) {
			to = c.owner[tenant]
		}
	}
	switched := span{From: c.since()}
	c.nodes.Migrate(t, bucketKey(moved), to, func() {
		n := len(c.seen(moved))
		await(t, "requests while the slot moves", func() bool { return len(c.seen(moved)) > n+settled })
	})
	c.awaitDecisions("decisions by the new owner")
	switched.To = c.since()
	c.awaitRefusals(switched.To)
	c.check(fault{concerns: func(tenant string) bool { return tenant == moved }, switched: switched})
}

// seen are the verdicts on a tenant's requests so far.
func (p *pressure) seen(tenant string) []verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.verdicts[tenant]
}

func TestAKilledMasterOfSentinelsLosesOnlyUnreplicatedAdmissions(t *testing.T) {
	watched := redistest.Sentinel(t)
	var known []string
	for _, s := range watched.Sentinels {
		known = append(known, fmt.Sprintf(`{"host":%q,"port":%d}`, s.Host, s.Port))
	}
	p := pressOn(t, fmt.Sprintf(`{"send_timeout":10000,"read_timeout":10000,"pipeline":true,"sentinel_master":%q,"sentinel_nodes":[%s,%s,%s]}`,
		redistest.MasterName, known[0], known[1], known[2]), []string{"alice", "beth", "gus"})
	p.awaitDecisions("load")
	lost := span{From: p.since()} // as in a cluster
	watched.Master.Replicate(t, "last")
	killed := p.since()
	watched.Master.Kill()
	lost.To = p.since()

	watched.AwaitMaster(t, watched.Replica)
	p.awaitDecisions("decisions by the successor")
	switched := span{killed, p.since()}
	p.awaitRefusals(switched.To)
	p.check(fault{func(string) bool { return true }, switched, lost})
	if p.count("alice", 503, switched) == 0 {
		t.Error("every request was decided: no master was killed under load")
	}
}
