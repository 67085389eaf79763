package spec

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/faultproxy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

const (
	// fleetSize is the number of plugin processes, and fleetStays of those among them that no fault ends.
	fleetSize, fleetStays = 8, 2
	// flowConnections are the connections of a process for one flow.
	flowConnections = 2
	// mostRenewed bounds the tokens that a node leases between a look at its metrics and its end.
	mostRenewed = 100
)

// churned is a fleet under load on a Redis Cluster, one more Redis behind a proxy, and a Postgres with a standby.
// Faults befall all of them.
type churned struct {
	*fleet
	t       *testing.T
	random  *rand.Rand
	nodes   *redisCluster
	clocked *clockedRedis
	proxy   *faultproxy.Proxy // in front of clocked
	plane   *plane            // its dsn names Postgres and the standby
	standby *pgtest.Server    // nil after the failover
	api     *api
	flows   []*flow
	seats   []*seat

	lost       int           // tokens whose charge a killed master may not have passed on
	stranded   int           // tokens of leases that were lost: with killed nodes, or expired
	unreported int           // answers that killed nodes had not reported
	unanswered int           // requests without an answer
	ahead      time.Duration // of the clock of the single Redis
}

// flow is the traffic of one tenant on one limit.
type flow struct {
	bound    bound
	others   string // settings of its plugin config, as JSON, each followed by a comma
	traffic  *traffic
	troubles []span // while its Redis was unavailable
	losses   []span // while its Redis lost data, or its clock stepped forward
}

// seat is the place of a process in the fleet: the next one there has its name and its files.
type seat struct {
	*churned
	name, saved string
	member      *member
	parts       []*part // of each flow
}

// calamity is one fault of the fleet. strike returns when the fault is over, with the flows whose Redis was
// unavailable.
type calamity struct {
	name   string
	loses  bool // Redis loses data, or refills early
	strike func(*churned) []*flow
}

var calamities = []calamity{
	{"a node is killed", false, (*churned).killNode},
	{"a node ends by SIGTERM, and starts again", false, (*churned).restartNode},
	{"a node takes up a new binary by SIGHUP", false, (*churned).hangUpNode},
	{"a node is stopped for a while", false, (*churned).freezeNode},
	{"a config changes, on all nodes", false, (*churned).changeConfig},
	{"a policy changes, and changes back", false, (*churned).changePolicy},
	{"a cluster's master is killed", true, (*churned).killMaster},
	{"a cluster's replica takes over as planned", false, (*churned).failOver},
	{"the single Redis hangs", false, (*churned).hang},
	{"the single Redis comes and goes", false, (*churned).flap},
	{"replies of the single Redis end in a reset", false, (*churned).cut},
	{"the clock of the single Redis steps forward", true, func(c *churned) []*flow { return c.step(time.Minute) }},
	{"the clock of the single Redis steps back", false, func(c *churned) []*flow { return c.step(-time.Second) }},
	{"Postgres fails", false, (*churned).failPostgres},
	{"the control server is killed, and starts again", false, (*churned).killControl},
}

// TestChaosSoakTheLedgersOfAChurnedFleetAddUp plays all calamities, in an order of the seed, again and again.
func TestChaosSoakTheLedgersOfAChurnedFleetAddUp(t *testing.T) {
	t.Parallel()
	c := newChurned(t)
	before := map[*seat]numbers{}
	c.awaitDecisions("load")
	await.That(t, "leases", func() bool { return c.seats[0].member.drawn() > 0 })
	for _, s := range c.seats[:fleetStays] {
		before[s] = s.member.numbers()
	}
	end := c.since() + soak.For(t, time.Minute)
	for order := []int(nil); c.since() < end; order = order[1:] {
		if len(order) == 0 {
			order = c.random.Perm(len(calamities))
		}
		c.play(calamities[order[0]])
	}
	c.awaitDecisions("decisions after the last fault")
	c.stop()
	c.checkLeases()
	for s, before := range before {
		checkGrowth(t, s.member.numbers, before)
	}
	for _, s := range c.seats {
		s.member.terminate()
	}
	for _, w := range c.flows {
		c.checkFlow(w)
	}
	c.checkUsage()
}

// newChurned starts the fleet and its load.
func newChurned(t *testing.T) *churned {
	seed := soak.Seed(t)
	c := &churned{t: t, random: rand.New(rand.NewPCG(seed, 0)), nodes: &redisCluster{redistest.Cluster(t, 3, 1)}}
	c.configureCluster()
	var addresses []string
	for _, s := range c.nodes.Masters {
		addresses = append(addresses, fmt.Sprintf(`{"ip":%q,"port":%d}`, s.Host, s.Port))
	}
	c.fleet = onRedis(t, fmt.Sprintf(`%s,"cluster_nodes":[%s]`, patience, strings.Join(addresses, ",")))
	c.clocked = startClocked(t)
	c.proxy = faultproxy.New(t, c.clocked.Address())
	alone := onRedis(t, fmt.Sprintf(`%s,"host":"127.0.0.1","port":%d`, patience, c.proxy.Port()))
	alone.begun = c.begun
	c.startPostgres()

	const exact = `"accuracy":"exact",`
	add := func(f *fleet, tenant, others string, b bound, load int) {
		c.flows = append(c.flows, &flow{bound: b, others: others, traffic: f.offer(by(tenant), steady(load))})
	}
	add(c.fleet, "acme", "", bound{algorithm: "token_bucket", limit: 100, window: time.Second, burst: 2000}, 300)
	add(c.fleet, "beta", "", bound{algorithm: "fixed_window", limit: 1000, window: 10 * time.Second}, 300)
	add(c.fleet, "gamma", "", yearly(10_000_000), 300)
	add(c.fleet, "delta", exact, yearly(10_000_000), 50)
	add(alone, "epsilon", exact, bound{algorithm: "token_bucket", limit: 50, window: time.Second, burst: 50}, 100)
	for i := range fleetSize {
		s := &seat{churned: c, name: fmt.Sprint("node-", i), saved: t.TempDir()}
		c.seats = append(c.seats, s)
		s.start()
	}
	t.Cleanup(c.stop) // before the nodes
	return c
}

// stop ends the load, and waits for the last answers.
func (c *churned) stop() {
	for _, w := range c.flows {
		w.traffic.stop()
	}
}

// configureCluster makes a failed master affect only its own slots, and be found dead late.
func (c *churned) configureCluster() {
	c.nodes.KeepHealthySlots(c.t)
	c.nodes.SetNodeTimeout(c.t, deadAfter)
}

// startPostgres starts Postgres, its standby, which has every commit, and the control server.
func (c *churned) startPostgres() {
	postgres := pgtest.Start(c.t)
	dsn := postgres.Database(c.t)
	c.standby = postgres.Standby(c.t)
	dsn = strings.Replace(dsn, postgres.Address(), postgres.Address()+","+c.standby.Address(), 1)
	c.plane = planeOn(c.t, shared, postgres, dsn+"&target_session_attrs=read-write")
	c.plane.write(`ALTER SYSTEM SET synchronous_standby_names = '*'`)
	c.plane.write(`SELECT pg_reload_conf()`)
	c.t.Cleanup(func() {
		if c.standby != nil { // it ends before Postgres, which would wait for it
			pgtest.Exec(c.t, c.plane.rows, `ALTER SYSTEM RESET synchronous_standby_names`)
			pgtest.Exec(c.t, c.plane.rows, `SELECT pg_reload_conf()`)
		}
	})
	c.api = c.plane.serve()
}

// start starts a process at the seat, with its part of each flow.
func (s *seat) start() {
	s.member = s.join("-lease-share", "5", "-database", s.plane.dsn, "-snapshot-dir", s.saved, "-node-name", s.name)
	s.parts = make([]*part, len(s.flows))
	for i, w := range s.flows {
		s.open(i, w.others)
	}
}

// open starts another version of the plugin config of a flow, as Kong does after a change, and moves the traffic there.
func (s *seat) open(i int, others string) {
	w, old := s.flows[i], s.parts[i]
	s.member.fleet = w.traffic.fleet // its Redis
	s.parts[i] = w.traffic.to(s.member, s.member.change(i+1, others, w.bound.config()), flowConnections)
	if old != nil {
		old.over.Store(true)
		conn, err := gateway.Dial(s.member.socket)
		require.NoError(s.t, err)
		defer conn.Close()
		require.NoError(s.t, conn.CloseInstance(old.id))
	}
}

// leave ends the seat's part of each flow.
func (s *seat) leave() {
	for _, p := range s.parts {
		p.over.Store(true)
	}
}

// worker returns the process that serves Kong.
func (s *seat) worker() int { return workerOf(s.t, s.member.cmd.Process.Pid) }

// expire adds the tokens of leases that the process has lost so far.
func (s *seat) expire() { s.stranded += s.member.leased("expired") }

// play plays a calamity until every flow is decided again.
func (c *churned) play(one calamity) {
	from := c.since()
	flows := one.strike(c)
	c.awaitDecisions(one.name)
	over := span{from, c.since()}
	for _, w := range flows {
		if w.troubles = append(w.troubles, over); one.loses {
			w.losses = append(w.losses, over)
		}
	}
	c.t.Logf("from %v to %v: %s", over.From.Round(time.Millisecond), over.To.Round(time.Millisecond), one.name)
}

// awaitDecisions waits until, from now on, the last requests of every flow were decided, and every node has contact
// with Postgres.
func (c *churned) awaitDecisions(what string) {
	c.t.Helper()
	now := c.since()
	for _, w := range c.flows {
		await.That(c.t, what, func() bool {
			w.traffic.mu.Lock()
			defer w.traffic.mu.Unlock()
			all := w.traffic.samples
			last := all[max(0, len(all)-settled):]
			return len(last) == settled && last[0].Sent >= now && counted(last, http.StatusServiceUnavailable) == 0
		})
	}
	for _, s := range c.seats {
		await.That(c.t, what+": contact with Postgres", func() bool {
			return s.member.numbers()["rate_limiter_policies_connected"] == 1
		})
	}
}

// mortal returns a seat whose process may end.
func (c *churned) mortal() *seat { return c.seats[fleetStays+c.random.IntN(fleetSize-fleetStays)] }

// on returns the flows whose buckets are on a master of the cluster.
func (c *churned) on(master *redistest.Server) []*flow {
	var flows []*flow
	for _, w := range c.flows {
		if w.traffic.fleet == c.fleet && c.nodes.MasterOf(c.t, bucketKey(w.traffic.request.Consumer.Username)) == master {
			flows = append(flows, w)
		}
	}
	return flows
}

// alone returns the flows on the single Redis.
func (c *churned) alone() []*flow { return c.flows[len(c.flows)-1:] }

func (c *churned) killNode() []*flow {
	s := c.mortal()
	const late = 3 * time.Second // by which instants of Postgres are later than those of the node
	var reported *time.Time      // until then, at least
	err := c.plane.rows.QueryRow(c.t.Context(), `SELECT max(until) FROM (SELECT node, began AS until
		FROM rate_limiter.usage_batches UNION ALL SELECT node, watermark FROM rate_limiter.usage_sources) reports
		WHERE node LIKE $1`, s.name+"%").Scan(&reported)
	require.NoError(c.t, err)
	since := time.Duration(0)
	if reported != nil {
		since = reported.Sub(c.begun) - late
	}
	s.expire()
	c.stranded += s.member.out() + mostRenewed
	for _, p := range s.parts {
		p.dying.Store(true)
	}
	s.member.kill()
	s.leave()
	c.unanswered += flowConnections * len(c.flows)
	for _, w := range c.flows {
		w.traffic.mu.Lock()
		for _, one := range w.traffic.samples {
			if one.Member == s.member && one.Answered >= since {
				c.unreported++
			}
		}
		w.traffic.mu.Unlock()
	}
	s.start()
	return nil
}

func (c *churned) restartNode() []*flow {
	s := c.mortal()
	s.expire()
	s.leave()
	s.member.terminate()
	s.start()
	return nil
}

func (c *churned) hangUpNode() []*flow {
	s := c.mortal()
	s.expire()
	before := s.worker()
	require.NoError(c.t, s.member.cmd.Process.Signal(syscall.SIGHUP))
	await.That(c.t, "the end of the worker before", func() bool { return syscall.Kill(before, 0) != nil })
	return nil
}

func (c *churned) freezeNode() []*flow {
	s := c.seats[c.random.IntN(fleetSize)]
	worker := s.worker()
	require.NoError(c.t, syscall.Kill(worker, syscall.SIGSTOP))
	elapse(c.t.Context(), time.Duration(1+c.random.IntN(3))*time.Second)
	require.NoError(c.t, syscall.Kill(worker, syscall.SIGCONT))
	return nil
}

func (c *churned) changeConfig() []*flow {
	i, header := c.random.IntN(len(c.flows)), c.random.IntN(2) == 0
	for _, s := range c.seats {
		s.open(i, fmt.Sprintf(`%s"degraded_header":%t,`, c.flows[i].others, header))
	}
	return nil
}

// changePolicy halves the limit of acme, and sets it again.
func (c *churned) changePolicy() []*flow {
	var made enforcement
	answer := c.api.want(http.StatusCreated, &made, http.MethodPost, "/v1/orgs/acme/ratelimit/overrides?wait=30s",
		`{"kind":"custom_limit","policy":"l","limit":50,"window_size":1,"burst":1000,"expires_in":"1h","reason":"a test"}`)
	assert.Empty(c.t, made.Enforcement.Behind, "nodes that have not enforced a change within 30 s")
	c.api.want(http.StatusOK, nil, http.MethodDelete, answer.Header.Get("Location")+"?wait=30s&reason=a+test", "")
	return nil
}

// killMaster kills the master of a tenant, which starts again as a replica. Only admissions after Replicate can be
// lost.
func (c *churned) killMaster() []*flow {
	key := bucketKey(c.flows[c.random.IntN(len(c.flows))].traffic.request.Consumer.Username)
	master := c.nodes.MasterOf(c.t, key)
	replica, flows := c.nodes.ReplicaOf(c.t, master), c.on(master)
	granted, from := c.granted(), c.since()
	replicate(c.t, master, key+"-")
	master.Kill()
	lost := span{from, c.since()}
	c.lost += c.granted() - granted
	for _, w := range flows {
		w.traffic.mu.Lock()
		for _, one := range w.traffic.samples {
			if one.Status == http.StatusOK && one.Answered >= lost.From && one.Sent <= lost.To {
				c.lost++
			}
		}
		w.traffic.mu.Unlock()
	}
	c.nodes.AwaitMaster(c.t, key, replica)
	master.Restart(c.t)
	c.configureCluster() // it has forgotten its settings
	c.nodes.ReplicaOf(c.t, replica)
	return flows
}

// granted returns the tokens that the nodes have leased.
func (c *churned) granted() (tokens int) {
	for _, s := range c.seats {
		tokens += s.member.leased("granted")
	}
	return tokens
}

func (c *churned) failOver() []*flow {
	key := bucketKey(c.flows[c.random.IntN(len(c.flows))].traffic.request.Consumer.Username)
	master := c.nodes.MasterOf(c.t, key)
	flows, replica := c.on(master), c.nodes.ReplicaOf(c.t, master)
	c.nodes.FailOver(c.t, key, replica)
	c.nodes.ReplicaOf(c.t, replica)
	return flows
}

func (c *churned) hang() []*flow {
	c.clocked.Hang(c.t)
	elapse(c.t.Context(), time.Second)
	c.clocked.Resume(c.t)
	return c.alone()
}

func (c *churned) flap() []*flow {
	for range 1 + c.random.IntN(4) {
		require.NoError(c.t, c.proxy.Down())
		elapse(c.t.Context(), 200*time.Millisecond)
		require.NoError(c.t, c.proxy.Heal())
		elapse(c.t.Context(), 200*time.Millisecond)
	}
	return c.alone()
}

func (c *churned) cut() []*flow {
	c.proxy.CutReplies(20, faultproxy.Reset)
	return c.alone()
}

func (c *churned) step(by time.Duration) []*flow {
	c.ahead += by
	c.clocked.Step(c.t, c.ahead)
	return c.alone()
}

// failPostgres kills Postgres. The first time its standby takes over, later it starts again.
func (c *churned) failPostgres() []*flow {
	c.plane.postgres.Kill(c.t)
	if c.standby != nil {
		c.standby.Promote(c.t)
		c.plane.postgres, c.standby = c.standby, nil
	} else {
		elapse(c.t.Context(), time.Second)
		c.plane.postgres.Start(c.t)
	}
	c.plane.rows.Reset()
	await.That(c.t, "the control server is ready", func() bool { return c.api.status("/readyz") == http.StatusOK })
	return nil
}

func (c *churned) killControl() []*flow {
	require.NoError(c.t, c.api.cmd.Process.Kill())
	<-c.api.ended
	c.api = c.plane.serve()
	return nil
}

// checkLeases checks that every token that a node has leased was spent, returned or lost.
func (c *churned) checkLeases() {
	c.t.Helper()
	for _, s := range c.seats {
		await.That(c.t, "the leases end", func() bool { return s.member.out() == 0 })
		s.expire()
		granted, spent, returned, expired := s.member.leased("granted"), s.member.leased("spent"),
			s.member.leased("returned"), s.member.leased("expired")
		c.t.Logf("%s: %d tokens leased = %d spent + %d returned + %d expired", s.name, granted, spent, returned, expired)
		assert.Equal(c.t, granted, spent+returned+expired, "leased tokens of %s", s.name)
	}
}

// checkFlow compares the answers of a flow with its limit.
func (c *churned) checkFlow(w *flow) {
	all := w.traffic.samples
	slices.SortFunc(all, func(a, b sample) int { return int(a.Sent - b.Sent) })
	begin := time.Duration(0)
	for _, loss := range append(w.losses, span{always.To, always.To}) {
		kept := slices.DeleteFunc(slices.Clone(all), func(s sample) bool { return s.Sent < begin || s.Answered > loss.From })
		if over := w.bound.over(kept); over > 1e-6 {
			c.t.Errorf("%s: %.1f were admitted above the limit from %v to %v", w.bound.algorithm, over, begin, loss.From)
		}
		begin = loss.To
	}
	if over, most := w.bound.over(all), len(w.losses)*max(w.bound.burst, w.bound.limit); over > float64(most) {
		c.t.Errorf("%s: %.1f were admitted above the limit, at most %d may be", w.bound.algorithm, over, most)
	}
	undecided := counted(all, http.StatusServiceUnavailable)
	calm := slices.DeleteFunc(slices.Clone(all), func(s sample) bool { return s.decidedOrIn(w.troubles) })
	if len(calm) > 0 {
		c.t.Errorf("%s: %d requests undecided while its Redis was available, from %v to %v", w.bound.algorithm, len(calm),
			calm[0].Sent, calm[len(calm)-1].Answered)
	}
	if n := undecided + counted(all, http.StatusOK) + counted(all, http.StatusTooManyRequests); n != len(all) {
		c.t.Errorf("%s: %d answers were no 200, 429 or 503", w.bound.algorithm, len(all)-n)
	}
	c.t.Logf("%s %s: %d answers, %d admitted, %d undecided, %d losses of data", w.traffic.request.Consumer.Username,
		w.bound.algorithm, len(all), counted(all, http.StatusOK), undecided, len(w.losses))
	if w.bound.window == yearly(0).window {
		c.checkTaken(w, undecided)
	}
}

// decidedOrIn reports whether a request was decided, or was in flight within one of some spans.
func (s *sample) decidedOrIn(within []span) bool {
	return s.Status != http.StatusServiceUnavailable || slices.ContainsFunc(within, func(w span) bool {
		return s.Answered >= w.From && s.Sent <= w.To
	})
}

// checkTaken compares the tokens that the bucket of a flow has lost with its admissions.
func (c *churned) checkTaken(w *flow, undecided int) {
	m := c.join()
	defer m.terminate()
	outcome := m.ask(c.t, m.open(`"accuracy":"exact",`, w.bound.config()), w.traffic.request)
	remaining, err := strconv.Atoi(asSpelled(outcome.Header, "X-RateLimit-Remaining"))
	require.NoError(c.t, err)
	taken, spent := w.bound.limit-remaining-1, counted(w.traffic.samples, http.StatusOK)
	most := undecided + c.unanswered + c.stranded
	c.t.Logf("%s: %d tokens taken, %d spent: the difference is %d, from %d to %d",
		w.traffic.request.Consumer.Username, taken, spent, taken-spent, -c.lost, most)
	if taken < spent-c.lost || taken > spent+most {
		c.t.Errorf("%s: %d tokens were taken and %d spent; the difference may be from %d to %d",
			w.traffic.request.Consumer.Username, taken, spent, -c.lost, most)
	}
}

// checkUsage compares the usage in Postgres with the answers.
func (c *churned) checkUsage() {
	answered := 0
	for _, w := range c.flows {
		answered += len(w.traffic.samples)
	}
	g := &governed{t: c.t, dsn: c.plane.dsn, rows: c.plane.rows}
	counted := int(g.unpack())
	c.t.Logf("usage: -%d ≤ %d counted - %d answered = %d ≤ %d",
		c.unreported, counted, answered, counted-answered, c.unanswered)
	if counted < answered-c.unreported || counted > answered+c.unanswered {
		c.t.Errorf("usage counts %d requests, and %d were answered; the difference may be from %d to %d", counted, answered,
			-c.unreported, c.unanswered)
	}
}
