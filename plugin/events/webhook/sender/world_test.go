package sender

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/leadership"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/outbox"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/webhook"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var ann = rows.Change{Actor: "ann", Reason: "a test"}

// world is a database with a sender, whose clock the test moves.
type world struct {
	*testing.T
	pool    *pgxpool.Pool
	store   *rows.DB
	options Options
	sender  *Sender
	session *session
	log     *bytes.Buffer
	granted *pgtest.Server // of a granted world
	events  int

	mu  sync.Mutex
	now time.Time
}

// newWorld returns a world whose sender may call this machine.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, log: new(bytes.Buffer), now: time.Now().Add(time.Hour)}
	dsn := pgtest.Shared(t).Database(t)
	w.pool = pgtest.Pool(t, dsn)
	w.store = rows.New(w.pool)
	w.options = Options{
		Connect: func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, dsn) },
		Targets: webhook.Targets{HTTP: true, Private: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}},
		Log:     slog.New(slog.NewTextHandler(w.log, nil)),
		Now:     w.clock,
		Clock:   func(context.Context, *pgx.Conn) (time.Time, error) { return w.clock(), nil },
		Random:  func() float64 { return 0.999 },
		Roots:   x509.NewCertPool(),
	}
	w.restart()
	t.Cleanup(func() { w.session.close() })
	return w
}

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

// pass moves the clock.
func (w *world) pass(length time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(length)
}

// restart starts a sender in the place of the one before.
func (w *world) restart() {
	w.Helper()
	if w.session != nil {
		w.session.close()
	}
	w.sender = New(w.options)
	conn, err := w.sender.job.Open(w.Context())
	require.NoError(w, err)
	w.Cleanup(func() { leadership.Close(conn) })
	w.session = w.sender.newSession(w.Context(), conn)
	require.NoError(w, w.session.setClock(w.Context()))
}

// work makes deliveries and sends all that is due, until nothing is.
func (w *world) work() {
	w.Helper()
	for busy := true; busy; {
		more, err := w.session.round(w.Context())
		require.NoError(w, err)
		busy = more || len(w.session.inFlight) > 0
		for len(w.session.inFlight) > 0 {
			require.NoError(w, w.session.await(w.Context(), nil))
		}
	}
}

// subscribe creates a webhook of an org.
func (w *world) subscribe(org, url string, types ...string) (webhook.Secret, int64) {
	w.Helper()
	secret, hook, err := w.store.CreateWebhook(w.Context(), ann, rows.NewWebhook{Org: org, URL: url, Types: types})
	require.NoError(w, err)
	return secret, hook.ID
}

// hook returns a webhook.
func (w *world) hook(id int64) rows.Webhook {
	w.Helper()
	hook, err := w.store.Webhook(w.Context(), id)
	require.NoError(w, err)
	return hook
}

// happen adds notices about an org to the outbox.
func (w *world) happen(org string, count int) {
	w.Helper()
	var all []events.Event
	for range count {
		w.events++
		all = append(all, events.Event{
			ID: fmt.Sprint("notice-", w.events), Source: events.Control, Type: events.QuotaThreshold, Time: w.clock(),
			Tenant: org, Data: json.RawMessage(fmt.Sprintf(`{"org": %q, "threshold": 80, "inner": "private"}`, org)),
		})
	}
	err := pgx.BeginFunc(w.Context(), w.pool, func(tx pgx.Tx) error { return outbox.Add(w.Context(), tx, all...) })
	require.NoError(w, err)
}

// message is a delivery that a receiver got.
type message struct {
	header http.Header
	body   []byte
	events []received
}

// received is an event of a delivery.
type received struct {
	SpecVersion, ID, Source, Type, Subject string
	Data                                   map[string]any
}

// receiver is a server for webhooks.
type receiver struct {
	*httptest.Server
	answer func(w http.ResponseWriter, r *http.Request)

	mu  sync.Mutex
	got []message
}

// newReceiver starts a receiver that answers with a status, or with answer.
func (w *world) newReceiver(answer func(http.ResponseWriter, *http.Request)) *receiver {
	w.Helper()
	r := &receiver{answer: answer}
	r.Server = httptest.NewServer(http.HandlerFunc(func(to http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return // the sender gave up
		}
		m := message{header: request.Header, body: body}
		assert.NoError(w, json.Unmarshal(body, &m.events), "the body is no batch: %s", body)
		r.mu.Lock()
		r.got = append(r.got, m)
		r.mu.Unlock()
		r.answer(to, request)
	}))
	r.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	w.Cleanup(r.Close)
	return r
}

func status(code int) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// messages returns what has arrived.
func (r *receiver) messages() []message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got
}

// want checks how many deliveries have arrived, and returns them.
func (w *world) want(r *receiver, count int) []message {
	w.Helper()
	all := r.messages()
	require.Equal(w, count, len(all), "deliveries have arrived")
	return all
}

// newGrantedWorld returns a world with the roles of migrations/README.md: the store has that of the REST API.
func newGrantedWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	s := pgtest.Granted(t)
	w.granted = s
	w.pool = pgtest.Pool(t, s.RoleDSN(pgtest.ServerRole))
	w.store = rows.New(w.pool)
	w.options.Connect = func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, s.RoleDSN(pgtest.Keeper)) }
	w.restart()
	return w
}
