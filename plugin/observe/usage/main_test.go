package usage

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/logtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// A reporter that has ended leaves no goroutine behind.
func TestMain(m *testing.M) { leaktest.Main(m) }

// answered is one bound of a decision, and the answer of its store.
type answered struct {
	policy policy.Policy
	cost   int64
	status decision.Status
}

// decided returns a decision for a tenant, about a request of an endpoint.
func decided(t testing.TB, tenant, endpoint string, bounds ...answered) *decision.Decision {
	t.Helper()
	d := new(decision.Decision)
	d.Reset()
	if tenant != "" {
		d.Identity.Tenant = identity.Name{Kind: identity.Tenant, ID: tenant}
	}
	d.Resolution.Endpoint = endpoint
	for _, b := range bounds {
		compiled, err := limit.New(limit.Spec{Algorithm: limit.FixedWindow, Quantity: 1000, Window: limit.Second})
		require.NoError(t, err)
		b.policy.Limit = compiled
		d.Resolution.Bounds = append(d.Resolution.Bounds, policy.Bound{Policy: &b.policy, Cost: b.cost})
	}
	d.Grow()
	for i, b := range bounds {
		d.Statuses[i] = b.status
	}
	d.Combine()
	return d
}

// admits, soft and denies are answers of Redis.
func admits(remaining int64) decision.Status {
	s := decision.Status{Source: decision.Redis, Charged: true}
	s.Remaining = remaining
	return s
}

func soft(remaining int64) decision.Status {
	s := admits(remaining)
	s.Soft = true
	return s
}

func denies(remaining int64) decision.Status {
	s := decision.Status{Source: decision.Redis, Wait: limit.Second}
	s.Remaining = remaining
	return s
}

// total adds rows up.
type total map[Key]Counts

func (to total) add(rows []Row) {
	for _, row := range rows {
		counts, ok := to[row.Key]
		if !ok {
			counts = noCounts
		}
		counts.Add(row.Counts)
		to[row.Key] = counts
	}
}

// delivered identifies a batch that a sink has stored.
type delivered struct {
	node, epoch string
	seq         int64
}

// shelf is a sink that stores batches once, as Postgres does.
type shelf struct {
	mu sync.Mutex
	contents
	fail    func(call int) error // nil: never; lostAnswer stores the batch all the same
	backlog func() (time.Duration, error)
}

// contents is what a shelf has been called with.
type contents struct {
	stored map[delivered]Batch
	ages   map[delivered]time.Duration
	order  []delivered
	calls  int
}

func newShelf() *shelf {
	return &shelf{contents: contents{stored: map[delivered]Batch{}, ages: map[delivered]time.Duration{}}}
}

// seen returns a copy of the contents.
func (s *shelf) seen() contents {
	s.mu.Lock()
	defer s.mu.Unlock()
	return contents{maps.Clone(s.stored), maps.Clone(s.ages), slices.Clone(s.order), s.calls}
}

// lostAnswer is the error of a call that has stored the batch.
type lostAnswer struct{}

func (lostAnswer) Error() string { return "the connection broke" }

// rejection is the error of a call that rejects the batch.
type rejection struct{}

func (rejection) Error() string { return "the payload is malformed" }
func (rejection) Rejects() bool { return true }

// setBacklog sets what Backlog returns.
func (s *shelf) setBacklog(backlog func() (time.Duration, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.backlog = backlog
}

func (s *shelf) Backlog(context.Context) (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.backlog == nil {
		return 0, nil
	}
	return s.backlog()
}

func (s *shelf) Report(
	_ context.Context, node, epoch string, seq int64, age time.Duration, payload []byte,
) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	var err error
	if s.fail != nil {
		err = s.fail(s.calls)
	}
	if err != nil && err != error(lostAnswer{}) {
		return err
	}
	var b Batch
	if malformed := b.UnmarshalBinary(payload); malformed != nil {
		return cmp.Or(err, malformed)
	}
	id := delivered{node, epoch, seq}
	if _, ok := s.stored[id]; !ok {
		s.stored[id], s.ages[id] = b, age
		s.order = append(s.order, id)
	}
	return err
}

// setFail sets what the next calls return.
func (s *shelf) setFail(fail func(call int) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

// failing returns a function for setFail.
func failing(err error) func(int) error { return func(int) error { return err } }

// sum adds all stored batches up.
func (s *shelf) sum() total {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := total{}
	for _, b := range s.stored {
		all.add(b.Rows)
	}
	return all
}

// requests returns the requests that the stored batches count.
func (s *shelf) requests() (n int64) {
	for k, counts := range s.sum() {
		if k.Policy == "" {
			n += counts.Admitted + counts.Denied
		}
	}
	return n
}

// logged returns a log, and what is written to it.
func logged() (*slog.Logger, *logtest.Text) {
	text := new(logtest.Text)
	return slog.New(slog.NewTextHandler(text, nil)), text
}

// running starts a reporter. end ends it and waits for that.
func running(t *testing.T, o ReporterOptions) (r *Reporter, end func()) {
	t.Helper()
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Node = cmp.Or(o.Node, "node-1")
	r = NewReporter(o)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		assert.NoError(t, <-ended, "Run ends")
	})
	t.Cleanup(end)
	return r, end
}
