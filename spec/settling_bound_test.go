package spec

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// mostUsed is the number of tokens that a request of a spender uses at most.
const mostUsed = 50

// spending is one admitted request, and when its log phase was over.
type spending struct {
	admission
	Settled time.Duration
}

// spender sends requests of one tenant to a member, as Kong does, one at a time. Several of them are in flight: it ends
// the one that was admitted first when a number of them is.
type spender struct {
	fleet    *fleet
	socket   string // of the plugin
	instance int32
	log      *gateway.Conn
	settling int32 // the instance of the companion plugin
	next     int   // of the sequence of amounts
	inFlight int

	all    []spending
	open   []map[string]any // kong.ctx.shared of those in flight, the last ones of all
	denied int
	sum    *spendings
}

// spendings sums up the requests of some spenders.
type spendings struct{ tokens, denied atomic.Int64 }

// newSpender returns a spender for an instance of a member's plugin.
func (m *member) newSpender(instance int32, n int, sum *spendings) (*spender, error) {
	log, err := gateway.Dial(filepath.Join(filepath.Dir(m.socket), "tenant-rate-settling.socket"))
	if err != nil {
		return nil, err
	}
	s := &spender{
		fleet: m.fleet, socket: m.socket, instance: instance, log: log, next: n, inFlight: 1 + n%4, sum: sum,
	}
	s.settling, err = log.StartInstance("tenant-rate-settling", fmt.Appendf(nil, `{"__seq__":%d,"__plugin_id":"s"}`, 1+n))
	return s, err
}

// spend sends requests until goesOn reports false, and ends all of them.
func (s *spender) spend(goesOn func() bool) (err error) {
	var c *gateway.Conn
	for goesOn() {
		if c == nil {
			if c, err = gateway.Dial(s.socket); err != nil {
				return err
			}
		}
		s.next++
		one := spending{admission: admission{Sent: s.fleet.since(), Tokens: float64(s.next * 7 % (mostUsed + 1))}}
		outcome, err := c.HandleEvent(s.instance, "access", gateway.Request{
			Consumer: &gateway.Consumer{ID: "c", Username: "acme"}, RemoteAddr: "127.0.0.1:1",
		})
		switch {
		case err != nil:
			return err
		case outcome.Exit != nil:
			s.denied, c = s.denied+1, nil // an exit closes the connection
			s.sum.denied.Add(1)
		default:
			one.Answered = s.fleet.since()
			s.all, s.open = append(s.all, one), append(s.open, outcome.Shared)
			s.sum.tokens.Add(int64(one.Tokens))
		}
		if len(s.open) == s.inFlight || outcome.Exit != nil && len(s.open) > 0 {
			if err := s.end(); err != nil {
				return err
			}
		}
	}
	for len(s.open) > 0 {
		if err := s.end(); err != nil {
			return err
		}
	}
	if c != nil {
		err = c.Close()
	}
	return errors.Join(err, s.log.Close())
}

// end runs the log phase of the request that was admitted first of those in flight.
func (s *spender) end() error {
	one := &s.all[len(s.all)-len(s.open)]
	_, err := s.log.HandleEvent(s.settling, "log", gateway.Request{Shared: s.open[0], Response: &gateway.Response{
		Status: http.StatusOK, Source: "service",
		Header: http.Header{"X-Tokens-Used": {strconv.Itoa(int(one.Tokens))}},
	}})
	one.Settled, s.open = s.fleet.since(), s.open[1:]
	return err
}

// spendOnTwoNodes sends requests of 64 spenders to two nodes with one Redis, as many as they can in a while, and until
// all have used some tokens and one request was denied. It returns those that were admitted and how many were not.
func spendOnTwoNodes(t *testing.T, f *fleet, limit string, tokens int) (all []spending, denied int) {
	t.Helper()
	var group sync.WaitGroup
	var spenders []*spender
	var sum spendings
	begun, lasts := time.Now(), soak.For(t, 1500*time.Millisecond)
	goesOn := func() bool {
		lasted := time.Since(begun)
		isLoad := sum.tokens.Load() >= int64(tokens) && sum.denied.Load() > 0
		return lasted < lasts || !isLoad && lasted < longest
	}
	for n, m := range f.joinAll(2) {
		instance := m.open("", limit)
		for i := range 32 {
			s, err := m.newSpender(instance, 32*n+i, &sum)
			require.NoError(t, err)
			spenders = append(spenders, s)
		}
	}
	for _, s := range spenders {
		group.Go(func() {
			if err := s.spend(goesOn); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for _, s := range spenders {
		all, denied = append(all, s.all...), denied+s.denied
	}
	slices.SortFunc(all, func(a, b spending) int { return cmp.Compare(a.Answered, b.Answered) })
	return all, denied
}

// allowed returns the admissions of requests that reserved tokens, each with the tokens by which those in flight at it
// exceed their reservations.
func allowed(all []spending, reserved float64) []admission {
	admissions := make([]admission, len(all))
	for i := range all {
		admissions[i] = all[i].admission
		for j := range all {
			if all[j].Sent <= all[i].Answered && all[j].Settled >= all[i].Sent {
				admissions[i].Above += max(0, all[j].Tokens-reserved)
			}
		}
	}
	return admissions
}

// settlingLimit returns a limit of a tenant that settles to a header, as JSON.
func settlingLimit(b bound, reserve int) string {
	b.others = fmt.Sprintf(`,"settle":{"sources":[{"from":"header.X-Tokens-Used"}],"reserve":%d}`, reserve)
	return b.config()
}

func TestTwoNodesSpendNoMoreThanTheLimitAndWhatRequestsInFlightExceedTheirReservations(t *testing.T) {
	t.Parallel()
	awaitTurn(t)
	b := bound{algorithm: "token_bucket", limit: 600, window: time.Second, burst: 800}
	for _, reserve := range []int{mostUsed, mostUsed / 5} {
		all, denied := spendOnTwoNodes(t, onSocket(t, redistest.Single(t)), settlingLimit(b, reserve), b.burst)
		total := 0.0
		for _, one := range all {
			total += one.Tokens
		}
		over := excess(allowed(all, float64(reserve)), b.rate(), float64(b.burst))
		t.Logf("reserving %d: %d requests used %.0f tokens, %d were denied: %.2g over",
			reserve, len(all), total, denied, over)
		if over > 1e-6 {
			t.Errorf("reserving %d: %.1f tokens were used above the promise, in the worst interval", reserve, over)
		}
		if denied == 0 || total < float64(b.burst) {
			t.Errorf("reserving %d: %d were denied, and %.0f tokens were used: that is no load", reserve, denied, total)
		}
	}
}
