//go:build linux

package spec

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// fourScopesUsedUp is a plugin config like fourScopes, with Kong's own headers off. The limit of a user is one request
// a day.
func fourScopesUsedUp(rest string) string {
	const plenty = `"limit":60000000,"window_size":60`
	return fmt.Sprintf(`{"__seq__":1,"__plugin_id":"p","route_id":"r","user_from":["consumer.username"],%s
		"tiers":[{"name":"a","limits":[{"name":"tenant","scope":"tenant",%s},
		{"name":"endpoint","scope":"tenant+endpoint",%[2]s},
		{"name":"user","scope":"user","limit":1,"window_size":86400,"algorithm":"fixed_window"}]}],
		"global":{"limits":[{"name":"all","scope":"global",%[2]s}]}}`, rest, plenty)
}

// denier is a plugin server that denies all requests, or admits all.
type denier struct {
	name string
	*server
	config string
	denies bool
	id     int32
}

// start starts the instance and sends the request that uses the limit up.
func (d *denier) start(b *testing.B) {
	b.Helper()
	d.id = startInstance(b, d.socket, d.config)
	c, err := gateway.Dial(d.socket)
	require.NoError(b, err)
	defer c.Close() // an exit has closed it
	if _, err := c.HandleEvent(d.id, "access", requestOf("acme")); err != nil {
		b.Fatal(err)
	}
}

// event runs one event on c, or on a new connection if c is nil, and returns the connection if it is still open: Kong
// drops a connection at an exit.
func (d *denier) event(c *gateway.Conn, request gateway.Request) (open *gateway.Conn, err error) {
	if c == nil {
		if c, err = gateway.Dial(d.socket); err != nil {
			return nil, err
		}
	}
	outcome, err := c.HandleEvent(d.id, "access", request)
	if err != nil {
		return nil, err
	}
	if denied := outcome.Exit != nil && outcome.Exit.Status == 429; denied != d.denies {
		return nil, fmt.Errorf("%s: denied: %t, want %t", d.name, denied, d.denies)
	}
	if !d.denies {
		open = c
	}
	return open, nil
}

// saturate runs events on so many connections at a time for a while, and returns how many.
func (d *denier) saturate(connections int, lasts time.Duration) (int, error) {
	var events atomic.Int64
	var load errgroup.Group
	end := time.Now().Add(lasts)
	for range connections {
		load.Go(func() (err error) {
			var c *gateway.Conn
			request := requestOf("acme")
			for time.Now().Before(end) {
				if c, err = d.event(c, request); err != nil {
					return err
				}
				events.Add(1)
			}
			if c != nil {
				return c.Close()
			}
			return nil
		})
	}
	err := load.Wait()
	return int(events.Load()), err
}

// measure measures one turn.
func (d *denier) measure(b *testing.B, connections int, turn time.Duration) spell {
	b.Helper()
	if _, err := d.saturate(connections, leadIn); err != nil {
		b.Fatal(err)
	}
	used, begun := d.cpuTime(b), time.Now()
	n, err := d.saturate(connections, turn)
	require.NoError(b, err)
	return spell{
		perSecond: float64(n) / time.Since(begun).Seconds(),
		cpu:       float64((d.cpuTime(b) - used).Nanoseconds()) / 1e3 / float64(n),
	}
}

// deniers starts the plugins of BenchmarkDenial. The first one is the floor.
func deniers(b *testing.B) []*denier {
	b.Helper()
	const exit = `{"__seq__":1,"exit":true}`
	leased := fmt.Sprintf(`"strategy":"redis","fail_mode":"closed","redis":{"socket":%q},`, redistest.Single(b).Socket)
	usedUp := fourScopesUsedUp("")
	list := []*denier{
		{name: "bare-exit", server: serve(b, "bench-floor", "-loop", "least"), config: exit, denies: true},
		{name: "bare-exit-on-wire", server: serve(b, "bench-floor"), config: exit, denies: true},
		{name: "denied-in-memory", server: servePlugin(b), config: usedUp, denies: true},
		{name: "denied-remembered", server: servePlugin(b), config: fourScopesUsedUp(leased), denies: true},
		{name: "admitted", server: servePlugin(b), config: strings.Replace(usedUp, `"limit":1,`, `"limit":60000000,`, 1)},
	}
	for _, d := range list {
		d.start(b)
	}
	return list
}

// BenchmarkDenial compares what a denied request costs the plugin's process with what the least plugin that asks one
// question and exits costs its own, and with an admitted request. Every exit ends its connection, as Kong ends it. All
// take turns; each number is the median of its turns.
func BenchmarkDenial(b *testing.B) {
	const rounds, turn, connections = 9, 400 * time.Millisecond, 16
	list := deniers(b)
	measured := make([][]spell, len(list))
	for range shortly(rounds) {
		for i, d := range list {
			measured[i] = append(measured[i], d.measure(b, connections, turn))
		}
	}
	for i, d := range list {
		row(b, "plugin="+d.name, map[string]float64{
			"events/s":         over(measured[i], func(s spell) float64 { return s.perSecond }),
			"cpu-µs/event":     over(measured[i], func(s spell) float64 { return s.cpu }),
			"cpu-vs-bare":      ratio(measured[i], measured[0]),
			"events/s-vs-bare": rateRatio(measured[i], measured[0]),
		})
	}
}

// rateRatio is how many events there are in a second beside another's, in the median of the rounds.
func rateRatio(spells, others []spell) float64 {
	var ratios []float64
	for i := range spells {
		ratios = append(ratios, spells[i].perSecond/others[i].perSecond)
	}
	return median(ratios)
}
