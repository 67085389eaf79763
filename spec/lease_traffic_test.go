package spec

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// schedule returns the instant of the n-th request, after the start.
type schedule func(n int) time.Duration

// steady returns an even schedule of perSecond requests a second.
func steady(perSecond int) schedule {
	return func(n int) time.Duration { return time.Duration(n) * time.Second / time.Duration(perSecond) }
}

// bursty returns a schedule with the requests of a quarter of a second at once.
func bursty(perSecond int) schedule {
	return func(n int) time.Duration { return time.Duration(4*n/perSecond) * time.Second / 4 }
}

// onOff returns a schedule of steady requests for a second, then none for a second.
func onOff(perSecond int) schedule {
	return func(n int) time.Duration {
		return steady(perSecond)(n%perSecond) + time.Duration(n/perSecond)*2*time.Second
	}
}

// rushes returns a schedule of two seconds: few requests in the first, and all others in the second.
func rushes(perSecond int) schedule {
	few, all := perSecond/20, 2*perSecond
	return func(n int) time.Duration {
		begin, n := time.Duration(n/all)*2*time.Second, n%all
		if n < few {
			return begin + steady(few)(n)
		}
		return begin + time.Second + steady(all-few)(n-few)
	}
}

// traffic is requests of one tenant on a schedule, with their samples. Members share the requests. A request that is
// due while all connections wait is sent when one is free.
type traffic struct {
	t        testing.TB
	fleet    *fleet
	request  gateway.Request
	at       schedule
	newUsers bool // each request is of another user
	ctx      context.Context
	end      context.CancelFunc
	start    time.Time
	next     atomic.Int64
	drivers  sync.WaitGroup

	mu      sync.Mutex
	samples []sample
}

// offer starts traffic without members. It ends with the test at the latest.
func (f *fleet) offer(request gateway.Request, at schedule) *traffic {
	ctx, end := context.WithCancel(context.Background())
	tr := &traffic{t: f.t, fleet: f, request: request, at: at, ctx: ctx, end: end, start: time.Now()}
	f.t.Cleanup(func() { tr.stop() }) // before the members end
	return tr
}

// part is one member's part of some traffic.
type part struct {
	*traffic
	member *member
	id     int32
	over   atomic.Bool // it ends, and a missing answer is no failure
	dying  atomic.Bool // the member is about to end, and a missing answer is no failure
}

// to adds a member's instance to the traffic, with a number of connections.
func (tr *traffic) to(m *member, id int32, connections int) *part {
	p := &part{traffic: tr, member: m, id: id}
	for range connections {
		tr.drivers.Go(func() {
			if err := p.drive(); err != nil && !p.over.Load() && !p.dying.Load() {
				tr.t.Errorf("an event failed, which Kong replays or answers with 500: %v", err)
			}
		})
	}
	return p
}

// stop ends the traffic, waits for the last answers and returns all of them.
func (tr *traffic) stop() []sample {
	tr.end()
	tr.drivers.Wait()
	return tr.samples
}

// lastFor ends the traffic after a duration from its start.
func (tr *traffic) lastFor(d time.Duration) []sample {
	elapse(tr.ctx, time.Until(tr.start.Add(d)))
	return tr.stop()
}

// count returns the number of answers with a status so far.
func (tr *traffic) count(status int) int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return counted(tr.samples, status)
}

// awaitDenials waits for n more denials.
func (tr *traffic) awaitDenials(t testing.TB, n int) {
	t.Helper()
	before := tr.count(http.StatusTooManyRequests)
	await.That(t, fmt.Sprintf("%d denials", n), func() bool { return tr.count(http.StatusTooManyRequests) >= before+n })
}

// counted returns the number of samples with a status.
func counted(samples []sample, status int) int {
	n := 0
	for i := range samples {
		if samples[i].Status == status {
			n++
		}
	}
	return n
}

// drive sends requests over one connection after another. A denial ends a connection, as in Kong.
func (p *part) drive() error {
	var c *gateway.Conn
	defer func() {
		if c != nil {
			c.Close()
		}
	}()
	for request := p.request; ; {
		n, isDue := p.wait()
		if !isDue {
			return nil
		}
		if p.newUsers {
			request.CredentialID = fmt.Sprint("k", n)
		}
		if c == nil {
			var err error
			if c, err = gateway.Dial(p.member.socket); err != nil {
				return err
			}
		}
		one := sample{Sent: p.fleet.since(), Member: p.member}
		outcome, err := c.HandleEvent(p.id, "access", request)
		one.Answered, one.Status = p.fleet.since(), http.StatusOK
		if err != nil && !closed(err) {
			return err
		}
		header := outcome.Header
		if outcome.Exit != nil {
			one.Status, header, c = outcome.Exit.Status, outcome.Exit.Header, nil
		}
		one.Degraded = asSpelled(header, "X-RateLimit-Degraded") != ""
		p.note(one)
	}
}

// asSpelled returns the value of a header in the plugin's spelling, which outcomes keep.
func asSpelled(header http.Header, name string) string { return strings.Join(header[name], ",") }

// wait takes the next request and waits until it is due. It returns false after the end of the traffic.
func (p *part) wait() (n int, isDue bool) {
	if p.over.Load() || p.ctx.Err() != nil {
		return 0, false
	}
	n = int(p.next.Add(1) - 1)
	if wait := time.Until(p.start.Add(p.at(n))); wait > 0 {
		elapse(p.ctx, wait)
	}
	return n, p.ctx.Err() == nil
}

// note adds a sample.
func (tr *traffic) note(one sample) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.samples = append(tr.samples, one)
}
