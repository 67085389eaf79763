package candidate

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/pgtext"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/drain"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
)

// DefaultMaxRows bounds the rows between two reports.
const DefaultMaxRows = 20_000

const maxExamples = 3

// Key is what requests are counted by.
type Key struct {
	Candidate string `json:"-"`
	Tenant    string `json:"tenant"`   // "": none, or an address
	Endpoint  string `json:"endpoint"` // as the candidate sees it
	Policy    string `json:"policy"`   // "": the requests themselves
}

// Row counts the requests of one key.
type Row struct {
	Key
	Requests      int64     `json:"requests"`
	ActiveOnly    int64     `json:"active_only"`    // denied by the active policies, admitted by the candidate
	CandidateOnly int64     `json:"candidate_only"` // the other way
	Both          int64     `json:"both"`           // denied by both
	Examples      []Example `json:"examples,omitempty"`
}

// Example is one request that the active policies and the candidate answer differently. It names no address.
type Example struct {
	At        time.Time `json:"at"`
	User      string    `json:"user,omitempty"` // a hash of the tenant's and the user's name; "": no user is named
	Denied    string    `json:"denied_by"`      // active or candidate
	Active    string    `json:"active"`         // its limit, or the reason of its denial; "": none
	Candidate string    `json:"candidate"`
}

// Counter counts what the active policies and the candidate answer. It is safe for concurrent use.
type Counter struct {
	max    int
	routes func(name string) bool // nil: every name is a route

	mu   sync.Mutex
	rows map[Key]*Row
}

// NewCounter returns a counter of at most that many rows; 0: DefaultMaxRows.
func NewCounter(most int) *Counter {
	return &Counter{max: cmp.Or(most, DefaultMaxRows), rows: map[Key]*Row{}}
}

// side is what one of the two plans answers to a request, or one of its policies.
type side struct {
	denied bool
	policy *policy.Policy  // nil: none, or a denial that is not a matter of limits
	reason decision.Reason // of such a denial
}

// text returns the limit, or the reason of a denial without one.
func (s side) text() string {
	switch {
	case s.policy != nil:
		return s.policy.Name + ": " + s.policy.Describe()
	case s.denied:
		return s.reason.String()
	}
	return ""
}

// add counts a request and its decision under the candidate: in the row of the requests, and in the rows of all
// policies that were read on either side. It reports false if there was no room for a row.
func (c *Counter) add(r *request, d *decision.Decision) bool {
	key := Key{Candidate: r.candidate.Name(), Endpoint: d.KnownEndpoint(c.routes)}
	if d.Identity.Tenant.Kind == identity.Tenant {
		key.Tenant = d.Identity.Tenant.ID
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	room := c.count(key, r, r.answer, side{denied(d), bindingOf(d), reasonOf(d)})
	for i := range d.Statuses {
		bound := d.Resolution.Bounds[i].Policy
		key.Policy = bound.Name
		active, read := r.sideOf(bound.Name)
		if read || d.Statuses[i].Source != decision.Unanswered { // else another bound denies, and it was not read
			room = c.count(key, r, active, side{denied: deniedBy(d, i), policy: bound}) && room
		}
	}
	for _, active := range r.bounds {
		same := func(b policy.Bound) bool { return b.Policy.Name == active.policy.Name }
		if active.read && !slices.ContainsFunc(d.Resolution.Bounds, same) {
			key.Policy = active.policy.Name
			room = c.count(key, r, active.side, side{}) && room
		}
	}
	return room
}

// count counts the two answers to a request in a row. It reports false if there is no room for the row. c.mu is held.
func (c *Counter) count(key Key, r *request, active, candidate side) bool {
	row := c.rows[key]
	if row == nil {
		if len(c.rows) >= c.max {
			return false
		}
		key.Tenant, key.Endpoint = strings.Clone(key.Tenant), strings.Clone(key.Endpoint)
		row = &Row{Key: key}
		c.rows[key] = row
	}
	row.Requests++
	by := "candidate"
	switch {
	case active.denied && candidate.denied:
		row.Both++
		return true
	case active.denied:
		by = "active"
		row.ActiveOnly++
	case candidate.denied:
		row.CandidateOnly++
	default:
		return true
	}
	if len(row.Examples) < maxExamples {
		row.Examples = append(row.Examples, Example{
			At: time.UnixMicro(int64(r.at)).UTC(), User: hashedUser(&r.identity), Denied: by,
			Active: active.text(), Candidate: candidate.text(),
		})
	}
	return true
}

// hashedUser returns a hash that names the user of a request to those who know both names, or "" if it names none.
func hashedUser(id *identity.Identity) string {
	if id.User.Kind != identity.User {
		return ""
	}
	sum := sha256.Sum256([]byte(id.Tenant.ID + "\x00" + id.User.ID))
	return "sha256:" + hex.EncodeToString(sum[:8])
}

func (c *Counter) cut() map[Key]*Row {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := c.rows
	c.rows = map[Key]*Row{}
	return taken
}

const (
	// reportEvery is the time between two reports.
	reportEvery = 5 * time.Second
	// reportTime bounds one call of Postgres, and lastReportTime all calls at the end.
	reportTime, lastReportTime = 10 * time.Second, 3 * time.Second
	// batchRows bounds the rows of one batch.
	batchRows = 500
)

// Sink stores batches of rows.
type Sink interface {
	// Report stores a batch of a candidate, which began age ago. seq counts the batches of source, from 1: a batch that is
	// stored already stays as it is. An error with the method Rejects() bool that returns true means that the batch will
	// never be stored.
	Report(ctx context.Context, source, candidate string, seq int64, age time.Duration, rows []byte) error
}

// ReporterOptions configures a Reporter. Counter, Sink, Source and Log must be set.
type ReporterOptions struct {
	Counter *Counter
	Sink    Sink
	Source  string // names one run of one process
	Log     *slog.Logger
	Every   time.Duration // 0: five seconds
}

// Reporter reports what a counter has counted. Counts wait in the counter while a batch cannot be stored.
type Reporter struct {
	options ReporterOptions
	seq     int64
	began   time.Time // of the rows in the counter
	waiting []batch
	failing bool // the last report failed, and that was logged

	failed, lost atomic.Uint64
}

type batch struct {
	candidate string
	seq       int64
	began     time.Time
	rows      []byte
}

// NewReporter returns a reporter. It starts nothing: see [Reporter.Run].
func NewReporter(o ReporterOptions) *Reporter {
	o.Every = cmp.Or(o.Every, reportEvery)
	return &Reporter{options: o, began: time.Now()}
}

// Failed returns the number of calls that did not store a batch, which is sent again.
func (r *Reporter) Failed() uint64 { return r.failed.Load() }

// Lost returns the number of batches that will never be stored.
func (r *Reporter) Lost() uint64 { return r.lost.Load() }

// Run reports until ctx ends, and then what was counted last.
func (r *Reporter) Run(ctx context.Context) error {
	drain.Run(ctx, r.options.Every, lastReportTime, nil, r.report)
	r.lost.Add(uint64(len(r.waiting)))
	return nil
}

// report sends the batches that wait, and then what was counted since. It is done after one try.
func (r *Reporter) report(ctx context.Context, _ bool) (done bool) {
	if r.sendAll(ctx) {
		r.cut()
		r.sendAll(ctx)
	}
	return true
}

// sendAll sends the batches that wait, and reports whether none is left.
func (r *Reporter) sendAll(ctx context.Context) bool {
	for len(r.waiting) > 0 && r.send(ctx, &r.waiting[0]) {
		r.waiting = r.waiting[1:]
	}
	return len(r.waiting) == 0
}

// send reports whether a batch needs no further try.
func (r *Reporter) send(ctx context.Context, b *batch) bool {
	bounded, cancel := context.WithTimeout(ctx, reportTime)
	defer cancel()
	err := r.options.Sink.Report(bounded, r.options.Source, b.candidate, b.seq, time.Since(b.began), b.rows)
	if err == nil {
		r.failing = false
		return true
	}
	if usage.IsRejection(err) {
		r.lost.Add(1)
		r.options.Log.Warn("Postgres rejects counts of a candidate: the report lacks them",
			"candidate", b.candidate, "error", err)
		return true
	}
	r.failed.Add(1)
	if !r.failing {
		r.options.Log.Warn("counts of a candidate cannot be stored: they wait", "candidate", b.candidate, "error", err)
	}
	r.failing = true
	return false
}

// cut makes batches of what was counted.
func (r *Reporter) cut() {
	began := r.began
	r.began = time.Now()
	byCandidate := map[string][]*Row{}
	for key, row := range r.options.Counter.cut() {
		row.Key = Key{key.Candidate, pgtext.Storable(key.Tenant), pgtext.Storable(key.Endpoint), key.Policy}
		for i := range row.Examples {
			row.Examples[i].Active = pgtext.Storable(row.Examples[i].Active)
			row.Examples[i].Candidate = pgtext.Storable(row.Examples[i].Candidate)
		}
		byCandidate[key.Candidate] = append(byCandidate[key.Candidate], row)
	}
	for _, name := range slices.Sorted(maps.Keys(byCandidate)) {
		for rows := range slices.Chunk(byCandidate[name], batchRows) {
			text, err := json.Marshal(rows)
			if err != nil { // unreachable: rows have texts, numbers and times
				r.lost.Add(1)
				continue
			}
			r.seq++
			r.waiting = append(r.waiting, batch{name, r.seq, began, text})
		}
	}
}
