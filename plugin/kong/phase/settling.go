package phase

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// sharedReservation is the key of kong.ctx.shared under which the token of a reservation goes from the access phase to
// the log phase.
const sharedReservation = "trl"

// SettlingOptions configures a Settling.
type SettlingOptions struct {
	Budget       time.Duration // how long an event may wait for Kong; 0: one second
	Drain        time.Duration // how long running events may take to finish at the end; 0: five seconds
	Reservations Settler       // of the requests that the other plugin has admitted (required)
	Log          *slog.Logger  // nil: nothing is logged
}

// Settler settles reservations. A reservation.Ledger is one.
type Settler interface {
	Settle(ctx context.Context, token string, source reservation.Source) error
}

// Settling serves the companion plugin to Kong: its log phase settles what limits have reserved for a request.
type Settling struct {
	*wire.Server
	reservations Settler
	unreserved   atomic.Uint64
}

// NewSettling makes a server. Serve starts it.
func NewSettling(o SettlingOptions) *Settling {
	s := &Settling{reservations: o.Reservations}
	s.Server = wire.New(wire.Options{
		Name:   schema.SettlingName,
		Start:  func(wire.Config) wire.Instance { return wire.Instance{Log: s.settle} },
		Budget: o.Budget, Drain: o.Drain, Log: o.Log,
	})
	return s
}

// Unreserved returns the number of log phases of requests without a reservation, since the start.
func (s *Settling) Unreserved() uint64 { return s.unreserved.Load() }

// settle settles the reservation of a request, if it has one.
func (s *Settling) settle(ctx context.Context, e *wire.Event) error {
	reader, ok := e.Local.(*endReader)
	if !ok {
		reader = &endReader{}
		e.Local = reader
	}
	reader.event = e
	token, err := reader.readToken()
	switch {
	case err != nil:
		return err
	case token == "":
		s.unreserved.Add(1)
		return nil
	}
	return s.reservations.Settle(ctx, token, reader)
}

// endReader reads what Kong's log phase says about a request. Requests that come one at a time reuse it.
type endReader struct {
	event     *wire.Event
	status    int
	source    string
	questions []wire.Question
}

// endQuestions are put to Kong for every request. The status and the source cost Kong little beside the phase itself.
// For rules that do not read the log, they identify most requests that never reached the upstream.
var endQuestions = []wire.Question{
	wire.NewQuestion("kong.ctx.shared.get", sharedReservation),
	wire.NewQuestion("kong.response.get_status", ""),
	wire.NewQuestion("kong.response.get_source", ""),
}

// readToken returns the token of the request's reservation, or "" if it has none, and reads the status and the source
// of the response.
func (r *endReader) readToken() (token string, err error) {
	err = r.event.Ask(endQuestions, func(i int, answer []byte) (err error) {
		switch i {
		case 0:
			token, err = wire.DecodeStringValue(answer)
		case 1:
			r.status, err = wire.DecodeInt(answer)
		case 2:
			r.source, err = wire.DecodeString(answer, nil)
		}
		return err
	})
	return token, err
}

var (
	// headersQuestion gets all headers, because kong.response.get_header hides that one came more than once.
	headersQuestion   = wire.NewNumberQuestion("kong.response.get_headers", 100)
	serializeQuestion = wire.NewQuestion("kong.log.serialize", "")
)

// Read reads what the rules need, in one round trip. It implements reservation.Source.
func (r *endReader) Read(_ context.Context, needs settle.Needs, a *settle.Answer) error {
	a.Status, a.Source, a.Tried = r.status, r.source, true
	a.Headers, a.Shared = map[string]string{}, map[string]string{}
	r.questions = r.questions[:0]
	for _, key := range needs.Shared {
		r.questions = append(r.questions, wire.NewQuestion("kong.ctx.shared.get", key))
	}
	headers, log := -1, -1 // their places among the questions
	if len(needs.Headers) > 0 {
		headers, r.questions = len(r.questions), append(r.questions, headersQuestion)
	}
	if needs.Log {
		log, r.questions = len(r.questions), append(r.questions, serializeQuestion)
	}
	return r.event.Ask(r.questions, func(i int, answer []byte) error {
		switch i {
		case headers:
			return readHeaders(answer, needs.Headers, a)
		case log:
			return readLog(answer, a)
		}
		value, err := wire.DecodeValue(answer)
		a.Shared[needs.Shared[i]] = sharedValue(value)
		return err
	})
}

// readHeaders reads the headers that have the names. One that came more than once has no value: it is ambiguous.
// An underscore of a name stands for a dash too, as in Kong.
func readHeaders(answer []byte, names []string, a *settle.Answer) error {
	return wire.DecodeHeaders(answer, func(header string, value wire.Value) {
		for _, name := range names {
			if header != name && header != strings.ReplaceAll(name, "_", "-") {
				continue
			}
			if _, repeated := a.Headers[name]; repeated {
				value = wire.Value{}
			}
			a.Headers[name] = value.Text
		}
	})
}

// readLog reads Kong's log entry, and from it whether the upstream was tried.
func readLog(answer []byte, a *settle.Answer) error {
	entry, err := wire.DecodeBytes(answer)
	if err != nil {
		return err
	}
	a.Log = settle.ParseLog(entry)
	a.Tried = a.Log.Tried()
	return nil
}

// sharedValue returns a value of kong.ctx.shared that may be an amount. A value that is no text has no Text.
func sharedValue(v wire.Value) string {
	if v.Kind == wire.NumberValue {
		return strconv.FormatFloat(v.Number, 'g', -1, 64)
	}
	return v.Text
}
