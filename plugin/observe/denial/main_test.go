package denial

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

var _ admit.Observer = (*Recorder)(nil)

// A recorder that has ended leaves no goroutine behind.
func TestMain(m *testing.M) { leaktest.Main(m) }

// answered is one bound of a decision.
type answered struct {
	policy policy.Policy
	status decision.Status
}

// What a store answers in these tests.
var (
	admits     = decision.Status{Source: decision.Redis}
	denies     = decision.Status{Source: decision.Redis, Wait: 1_500_000}
	deniesLong = decision.Status{Source: decision.Memory, Wait: 60 * limit.Second}
	localNo    = decision.Status{Source: decision.Local, Failure: decision.TimedOut, Wait: limit.Second}
	shareNo    = decision.Status{Source: decision.FairShare, Wait: limit.Second}
	unanswered = decision.Status{Failure: decision.Unavailable, Wait: 2 * limit.Second}
)

// named is a policy that allows ten requests a minute.
func named(name string, scope policy.Scope) policy.Policy {
	compiled, err := limit.New(
		limit.Spec{Algorithm: limit.TokenBucket, Quantity: 10, Window: 60 * limit.Second, Burst: 20},
	)
	if err != nil {
		panic(err)
	}
	return policy.Policy{Name: name, Scope: scope, Limit: compiled}
}

// undecided returns a decision about a request of a tenant before anything has decided it.
func undecided(org string) *decision.Decision {
	d := new(decision.Decision)
	d.Reset()
	d.Identity.Tenant = identity.Name{Kind: identity.Tenant, ID: org}
	d.Identity.User = identity.Name{Kind: identity.User, ID: "u_42"}
	d.Resolution.Tier, d.Resolution.Endpoint = "gold", "POST /records/{id}"
	return d
}

// decided is a combined decision over bounds.
func decided(org string, bounds ...answered) *decision.Decision {
	d := undecided(org)
	for i := range bounds {
		d.Resolution.Bounds = append(d.Resolution.Bounds, policy.Bound{Policy: &bounds[i].policy, Cost: 1})
	}
	d.Grow()
	for i := range bounds {
		d.Statuses[i] = bounds[i].status
	}
	d.Combine()
	return d
}

// deniedFor returns a denial for another reason than a bound.
func deniedFor(org string, reason decision.Reason) *decision.Decision {
	d := undecided(org)
	d.Deny(reason)
	return d
}

// shelf is a sink that keeps its lines, and fails while a test makes it.
type shelf struct {
	mu      sync.Mutex
	lines   []Line
	batches int
	failing error
}

func (s *shelf) Write(_ context.Context, batch []Line) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.batches++
	if s.failing == nil {
		s.lines = append(s.lines, batch...)
	}
	return s.failing
}

func (s *shelf) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing = err
}

// events are the lines on the shelf.
func (s *shelf) events(t testing.TB) []event {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	events := make([]event, len(s.lines))
	for i, line := range s.lines {
		require.NoError(t, json.Unmarshal(line.Text, &events[i]), "%q is no JSON", line.Text)
		if events[i].Count != line.Denials || events[i].Org != readable(line.Org) {
			t.Errorf("the line is of %q and counts %d, its text %s", line.Org, line.Denials, line.Text)
		}
	}
	return events
}

// sums are the counts and answers of all events.
func sums(events []event) (count, answers uint64) {
	for _, e := range events {
		count += e.Count
		answers += e.Answers
	}
	return count, answers
}

var errDiskFull = errors.New("no space left on device")

// running starts a recorder with one shelf; end stops it and waits.
func running(t *testing.T, options Options) (r *Recorder, to *shelf, end func()) {
	t.Helper()
	to = &shelf{}
	if options.Sinks == nil {
		options.Sinks = map[string]Sink{"shelf": to}
	}
	if options.Log == nil {
		options.Log = slog.New(slog.DiscardHandler)
	}
	r = New(options)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return r, to, func() {
		t.Helper()
		cancel()
		assert.NoError(t, <-ended)
	}
}

// wait lets the bubble's clock run.
func wait(d time.Duration) { time.Sleep(d) }

// logged is a logger whose messages can be read.
func logged() (*slog.Logger, *strings.Builder) {
	var text strings.Builder
	return slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})), &text
}
