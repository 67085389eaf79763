package api_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// dialled returns a pool that connects with dial.
func dialled(t *testing.T, dsn string, dial func(ctx context.Context, network,
	address string) (net.Conn, error),
) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	require.NoError(t, err)
	config.ConnConfig.DialFunc = dial
	config.ConnConfig.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil }
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	require.NoError(t, err)
	return pool
}

// silence takes what is sent and answers nothing.
func silence(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, far) }() // until near is closed
	return near, nil
}

func TestADatabaseThatDoesNotRespondIsReportedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool := dialled(t, "postgres://nobody@127.0.0.1:1/none?sslmode=disable", silence)
		defer pool.Close()
		server, err := api.New(api.Options{
			Rows: rows.New(pool), Tokens: ring{}, Log: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		for _, test := range []struct {
			call  call
			bound time.Duration
		}{
			{call{admin, "GET", policies, "", nil}, 10 * time.Second},
			{call{admin, "POST", policies, daily, nil}, 10 * time.Second},
			{call{admin, "POST", policies + "?wait=5s", daily, nil}, 15 * time.Second},
			{call{admin, "PUT", policies + "?wait=1000h", daily, nil}, 0}, // which is no time to wait
			{call{method: "GET", path: "/readyz"}, 2 * time.Second},
		} {
			begin, recorder := time.Now(), httptest.NewRecorder()
			server.ServeHTTP(recorder, test.call.request())
			want := http.StatusServiceUnavailable
			if test.bound == 0 {
				want = http.StatusUnprocessableEntity
			}
			if took := time.Since(begin); recorder.Code != want || took != test.bound {
				t.Errorf("%s %s: %d %s after %v, want %d after %v", test.call.method, test.call.path, recorder.Code, recorder.Body,
					took, want, test.bound)
			}
		}
	})
}

func TestAnyNumberOfProbesTakesOneConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var connections atomic.Int64
		pool := dialled(t, "postgres://nobody@127.0.0.1:1/none?sslmode=disable&pool_max_conns=8",
			func(ctx context.Context, network, address string) (net.Conn, error) {
				connections.Add(1)
				return silence(ctx, network, address)
			})
		defer pool.Close()
		server, err := api.New(api.Options{
			Rows: rows.New(pool), Tokens: ring{}, Log: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		ctx, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				request := call{method: "GET", path: "/readyz"}.request()
				if i == 0 {
					request = request.WithContext(ctx)
				}
				recorder := httptest.NewRecorder()
				if server.ServeHTTP(recorder, request); recorder.Code != http.StatusServiceUnavailable {
					t.Errorf("a probe is answered by %d", recorder.Code)
				}
			})
		}
		begin := time.Now()
		synctest.Wait()
		leave() // the others learn nothing of it
		all.Wait()
		if n, took := connections.Load(), time.Since(begin); n != 1 || took != 2*time.Second {
			t.Errorf("50 probes take %d connections and %v, want one, and 2 s", n, took)
		}
	})
}

// slow implements buckets that answer after a while.
type slow struct{ shelf }

func (s slow) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	time.Sleep(3 * time.Second)
	return s.shelf.Take(ctx, bounds, statuses)
}

func TestABatchThatTakesTooLongReportsHowMuchOfItWasDecided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool := dialled(t, "postgres://nobody@127.0.0.1:1/none?sslmode=disable", silence)
		defer pool.Close()
		decider := deciderOf(t, plan(), slow{shelf{memory.New(memory.Options{Now: clock})}}, enterprise())
		server, err := api.New(api.Options{
			Rows: rows.New(pool), Tokens: ring{}, Log: slog.New(slog.DiscardHandler), Decider: decider,
		})
		require.NoError(t, err)
		recorder := httptest.NewRecorder()
		server.ServeHTTP(recorder, call{
			admin, "POST", "/v1/ratelimit/check/batch",
			`{"checks":[` + strings.Repeat(`{"org_id":"acme"},`, 9) + `{"org_id":"acme"}]}`, nil,
		}.request())
		if recorder.Code != http.StatusServiceUnavailable || !strings.Contains(recorder.Body.String(), "4 of 10") {
			t.Errorf("answered by %d %s", recorder.Code, recorder.Body)
		}
	})
}

// severed is a connection that breaks after it has sent a COMMIT, once it is armed.
type severed struct {
	net.Conn
	armed *atomic.Bool
}

func (c severed) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err == nil && bytes.Contains(b, []byte("commit\x00")) && c.armed.Swap(false) {
		err = c.Close()
	}
	return n, err
}

func TestAnUnansweredCommitIsReportedAsUncertainAndMayBeRetried(t *testing.T) {
	t.Parallel()
	var armed atomic.Bool
	pool := dialled(t, pgtest.Shared(t).Database(t), func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return severed{conn, &armed}, err
	})
	t.Cleanup(pool.Close)
	w := open(t, func(o *api.Options) { o.Rows = rows.New(pool) })
	for at, body := range map[string]string{
		policies: daily, overrides: `{"kind":"ban","reason":"abuse","permanent":true}`,
	} {
		armed.Store(true)
		a := w.want(w.as("POST", at, body, "Idempotency-Key", "once "+at), http.StatusServiceUnavailable)
		detail := read[problem](w, a).Detail
		if !strings.Contains(detail, "unknown") || !strings.Contains(detail, "Idempotency-Key") ||
			strings.Contains(detail, "nothing was written") {
			t.Errorf("%s: the detail is %q", at, detail)
		}
		w.want(w.as("POST", at, body, "Idempotency-Key", "once "+at), http.StatusCreated)
		if list := read[answers.Page[any]](w, w.as("GET", at, "")); len(list.Items) != 1 {
			t.Errorf("%s: there are %v, want one", at, list.Items)
		}
	}
	if !strings.Contains(w.log.String(), "not known whether") {
		t.Errorf("the log has %s", w.log)
	}
}

// hurried implements buckets that time out.
type hurried struct{ api.Buckets }

func (hurried) Peek(_ context.Context, _ []policy.Bound, statuses []decision.Status) error {
	for i := range statuses {
		statuses[i] = decision.Status{Failure: decision.TimedOut}
	}
	return nil
}

func (hurried) Forget(context.Context, []policy.Bound) (int, error) {
	return 0, errors.New("not in time")
}

func TestOperatorsReadAndEmptyBucketsThatAreTooSlowForRequests(t *testing.T) {
	t.Parallel()
	p := using(t)
	options := p.server.Options
	options.Buckets, options.OperatorBuckets = hurried{}, p.store
	server, err := api.New(options)
	require.NoError(t, err)
	p.server = server
	p.want(p.as("GET", acmeUsage, ""), http.StatusOK)
	p.want(p.as("POST", acmeReset, `{"reason":"billed twice"}`), http.StatusOK)
	if used := p.has("acme", "")["daily of the org"]; used != 0 {
		t.Errorf("%d are used after a reset", used)
	}
}
