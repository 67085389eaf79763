//go:build linux

package spec

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

// BenchmarkMasters measures the cost of a decision of four scopes for Redis, with 1, 2 and 4 plugin processes on Redis
// Clusters of 1, 2 and 3 masters, and extrapolates to a million decisions a second. Sixteen connections ask for
// twenty-four tenants in turns, as many on each master. What leases save depends on how often one process sees one
// tenant: here decisions/s by 24 and by the processes.
//
// redis-cores-at-1M/s is the sum over all masters. A tenant's buckets are spread over the masters, but each that all
// tenants share is on one: busiest-of-12-% is how busy the master of the global limit would be among twelve, in percent
// of a core; above 100 it does not suffice. With one master the two are equal. Both are rather too high: a busier Redis
// reads more commands at once, and each costs it less. decisions/s is what this machine does with client, plugin and
// Redis together.
func BenchmarkMasters(b *testing.B) {
	const rounds, turn = 3, 600 * time.Millisecond
	cells := masterCells(b)
	for range shortly(rounds) {
		for _, c := range cells {
			c.measure(b, turn)
		}
	}
	for _, c := range cells {
		row(b, fmt.Sprintf("accuracy=%s/processes=%d/masters=%d", c.accuracy, len(c.subjects), len(c.clients)), c.columns())
	}
}

const (
	masterConnections = 16
	masterTenants     = 24
)

// masterCell is one combination of BenchmarkMasters with its measurements so far.
type masterCell struct {
	accuracy string
	subjects []*subject // one for each process
	*masters

	seconds   float64
	decisions int
	calls     int
	busy      []float64 // of each master: CPU seconds beside those of an idle one
}

// masterCells starts the clusters, the processes and their instances.
func masterCells(b *testing.B) []*masterCell {
	b.Helper()
	var servers []*server
	for range 4 {
		servers = append(servers, servePlugin(b))
	}
	var clusters []*masters
	for n := 1; n <= 3; n++ {
		clusters = append(clusters, newMasters(b, n))
	}
	var cells []*masterCell
	for i, accuracy := range []string{"exact", "leased"} {
		for j, m := range clusters {
			subjects := m.subjects(b, servers, 1+10*i+j, accuracy)
			for _, processes := range []int{1, 2, 4} {
				cells = append(cells, &masterCell{
					accuracy: accuracy, subjects: subjects[:processes], masters: m,
					busy: make([]float64, len(m.clients)),
				})
			}
		}
	}
	measureIdle(b, clusters)
	return cells
}

// measure adds a turn.
func (c *masterCell) measure(b *testing.B, turn time.Duration) {
	b.Helper()
	c.saturate(b, leadIn)
	before, calls, begun := c.used(b), c.scripts(b), time.Now()
	c.decisions += c.saturate(b, turn)
	seconds := time.Since(begun).Seconds()
	for i, used := range c.used(b) {
		c.busy[i] += used - before[i] - c.idle[i]*seconds
	}
	c.seconds += seconds
	c.calls += c.scripts(b) - calls
}

// saturate divides the connections between the processes.
func (c *masterCell) saturate(b *testing.B, lasts time.Duration) int {
	b.Helper()
	var events atomic.Int64
	var load errgroup.Group
	for _, u := range c.subjects {
		load.Go(func() error {
			n, err := u.saturate(masterConnections/len(c.subjects), lasts)
			events.Add(int64(n))
			return err
		})
	}
	require.NoError(b, load.Wait())
	return int(events.Load())
}

// columns returns the cell's row of the output.
func (c *masterCell) columns() map[string]float64 {
	var total float64
	for _, seconds := range c.busy {
		total += seconds
	}
	decisions := float64(c.decisions)
	columns := map[string]float64{
		"decisions/s":                decisions / c.seconds,
		"redis-µs/decision":          total / decisions * 1e6,
		"redis-calls/1000-decisions": float64(c.calls) / decisions * 1e3,
		"redis-cores-at-1M/s":        total / decisions * 1e6,
	}
	if n := float64(len(c.busy)); n > 1 {
		busiest := slices.Max(c.busy)
		shared := busiest - (total-busiest)/(n-1) // its part without the tenants
		columns["busiest-of-12-%"] = (shared + (total-shared)/12) / decisions * 1e6 * 100
	}
	return columns
}

// masters are the masters of one cluster.
type masters struct {
	nodes   string   // as in a config
	tenants []string // with buckets on them
	clients []*redis.Client
	idle    []float64 // of each: CPU seconds a second without requests
}

// newMasters starts a cluster of n masters.
func newMasters(b *testing.B, n int) *masters {
	b.Helper()
	m := &masters{}
	nodes := redistest.Cluster(b, n, 0)
	var known []string
	for _, s := range nodes.Masters {
		m.clients = append(m.clients, s.Client(b))
		known = append(known, fmt.Sprintf(`{"ip":%q,"port":%d}`, s.Host, s.Port))
	}
	m.nodes = strings.Join(known, ",")
	have := map[*redistest.Server]int{}
	for i := 0; len(m.tenants) < masterTenants; i++ {
		tenant, master := "tenant-"+strconv.Itoa(i), nodes.Masters[0]
		if n > 1 {
			master = nodes.MasterOf(b, bucketKey(tenant))
		}
		if have[master] < masterTenants/n {
			have[master]++
			m.tenants = append(m.tenants, tenant)
		}
	}
	return m
}

// subjects starts an instance in each process. They share their buckets.
func (m *masters) subjects(b *testing.B, servers []*server, seq int, accuracy string) []*subject {
	b.Helper()
	config := fourScopes(seq,
		fmt.Sprintf(`"strategy":"redis","fail_mode":"closed","namespace":%q,"accuracy":%[1]q,
			"redis":{"send_timeout":1000,"read_timeout":1000,"cluster_nodes":[%s]},`, accuracy, m.nodes))
	var subjects []*subject
	for i, s := range servers {
		u := newSubject(b, fmt.Sprintf("%s in process %d", accuracy, i), s, config, true, m.tenants...)
		u.connect(b, masterConnections)
		subjects = append(subjects, u)
	}
	return subjects
}

// measureIdle measures the CPU time of idle masters.
func measureIdle(b *testing.B, clusters []*masters) {
	b.Helper()
	start, before := time.Now(), [][]float64{}
	for _, m := range clusters {
		before = append(before, m.used(b))
	}
	<-time.After(2 * time.Second) // the measured time
	seconds := time.Since(start).Seconds()
	for i, m := range clusters {
		for j, used := range m.used(b) {
			m.idle = append(m.idle, (used-before[i][j])/seconds)
		}
	}
}

// used returns the CPU seconds of each master since its start.
func (m *masters) used(b *testing.B) []float64 {
	b.Helper()
	var all []float64
	for _, client := range m.clients {
		fields, sum := info(b, client, "cpu"), 0.0
		for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
			seconds, err := strconv.ParseFloat(fields[name], 64)
			if err != nil {
				b.Fatalf("%s of a master: %v", name, err)
			}
			sum += seconds
		}
		all = append(all, sum)
	}
	return all
}

// scripts returns the number of scripts that the masters have run since their start.
func (m *masters) scripts(b *testing.B) int {
	b.Helper()
	sum := 0
	for _, client := range m.clients {
		sum += scripts(b, client)
	}
	return sum
}
