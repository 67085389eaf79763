package policysync_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/webhook"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
)

// usageSink returns a sink that the test closes.
func usageSink(t *testing.T, source policysync.Source) *policysync.UsageSink {
	sink := policysync.NewUsageSink(source)
	t.Cleanup(sink.Close)
	return sink
}

// payload returns the payload of a batch.
func payload(t *testing.T, seq int64) []byte {
	t.Helper()
	b := usage.Batch{Epoch: "0123456789abcdef", Seq: seq, Span: 5 * time.Second}
	text, err := b.MarshalBinary()
	require.NoError(t, err)
	return text
}

// report reports a batch that began 90 s ago.
func report(t *testing.T, to *policysync.UsageSink, seq int64) error {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return to.Report(ctx, "node-1/a", "0123456789abcdef", seq, 90*time.Second, payload(t, seq))
}

func TestANodeReportsItsUsageWithTheGrantsOfTheReadme(t *testing.T) {
	server := pgtest.Granted(t)
	w := &world{t, server.RoleDSN(pgtest.Node), pgtest.Pool(t, server.DSN("ratelimit"))}
	sink := usageSink(t, policysync.Source{DSN: w.dsn})
	if waits, err := sink.Backlog(t.Context()); err != nil || waits != 0 {
		t.Errorf("before the first batch the oldest has been waiting for %v (%v), want 0", waits, err)
	}
	for _, seq := range []int64{1, 2, 2, 1} { // an answer that was lost makes the reporter send a batch twice
		require.NoError(t, report(t, sink, seq))
	}
	const began = `SELECT string_agg(seq::text, ' ' ORDER BY seq) FROM rate_limiter.usage_batches
		WHERE node = 'node-1/a' AND epoch = '0123456789abcdef'
			AND began BETWEEN clock_timestamp() - interval '90 s' - $1::interval AND clock_timestamp() - interval '90 s'`
	assert.Equal(t, "1 2", value[string](w, began, patience), "the batches")
	got := value[[]byte](w, `SELECT payload FROM rate_limiter.usage_batches WHERE seq = 2`)
	assert.True(t, slices.Equal(got, payload(t, 2)), "the payload is %x", got)
	const set = `UPDATE rate_limiter.usage_batches SET began = began - interval '1 h',
		received_at = received_at - interval '1 h' WHERE seq = 2`
	_, err := w.pool.Exec(t.Context(), set)
	require.NoError(t, err)
	if waits, err := sink.Backlog(t.Context()); err != nil || waits < time.Hour || waits > time.Hour+patience {
		t.Errorf("the oldest batch has been waiting for %v (%v), want an hour", waits, err)
	}
}

func TestUsageIsReportedAgainWhenPostgresIsBack(t *testing.T) {
	w := newWorld(t)
	sink := usageSink(t, policysync.Source{DSN: w.dsn})
	require.NoError(t, report(t, sink, 1))
	_, err := w.pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE pid <> pg_backend_pid() AND datname = current_database()`)
	require.NoError(t, err)
	if err := report(t, sink, 2); err == nil || usage.IsRejection(err) {
		t.Errorf("over a connection that was closed the error is %v, want one after which the batch is sent again", err)
	}
	assert.NoError(t, report(t, sink, 2), "the next call fails")
}

// adviceOf returns the advice of an error.
func adviceOf(err error) string {
	var advised interface{ Advice() string }
	if errors.As(err, &advised) {
		return advised.Advice()
	}
	return ""
}

func TestADatabaseWithoutUsageIsToBeMigrated(t *testing.T) {
	w := newWorld(t)
	_, err := w.pool.Exec(t.Context(), `DROP FUNCTION rate_limiter.report_usage`)
	require.NoError(t, err)
	sink := usageSink(t, policysync.Source{DSN: w.dsn})
	if err := report(t, sink, 1); usage.IsRejection(err) || !strings.Contains(adviceOf(err), "ratelimit migrate up") {
		t.Errorf("the error is %v with the advice %q, want one to migrate", err, adviceOf(err))
	}
	if _, err := w.pool.Exec(t.Context(), `INSERT INTO rate_limiter.migrations (version_id, is_applied)
		VALUES (9000, true)`); err != nil {
		t.Fatal(err)
	}
	if err := report(t, sink, 1); !strings.Contains(adviceOf(err), "newer than this program") {
		t.Errorf("of a newer database the error is %v with the advice %q", err, adviceOf(err))
	}
}

func TestABatchThatBreaksARuleIsRejected(t *testing.T) {
	w := newWorld(t)
	sink := usageSink(t, policysync.Source{DSN: w.dsn})
	err := sink.Report(t.Context(), "node-1", "no epoch", 1, 0, payload(t, 1))
	assert.True(t, usage.IsRejection(err), "the error is %v, want a rejection", err)
	err = sink.Report(t.Context(), "node-1", "0123456789abcdef", 1, 0, make([]byte, usage.MaxPayload+1))
	assert.True(t, usage.IsRejection(err), "the error is %v, want a rejection", err)
}

func TestAnUnreachablePostgresIsNoRejection(t *testing.T) {
	sink := usageSink(t, policysync.Source{DSN: "postgres://" + closedPort(t) + "/db?sslmode=disable"})
	if err := report(t, sink, 1); err == nil || usage.IsRejection(err) {
		t.Errorf("the error is %v, want one after which the batch is sent again", err)
	}
}

// subscribe creates a webhook of acme, as the REST API does.
func subscribe(t *testing.T, server *pgtest.Server) webhook.Secret {
	t.Helper()
	store := rows.New(pgtest.Pool(t, server.RoleDSN(pgtest.ServerRole)))
	secret, _, err := store.CreateWebhook(t.Context(), rows.Change{Actor: "ann", Reason: "a test"},
		rows.NewWebhook{Org: "acme", URL: "https://hooks.example.com/"})
	require.NoError(t, err)
	return secret
}

func TestANodeOffersDenialsWithTheGrantsOfTheReadme(t *testing.T) {
	server := pgtest.Granted(t)
	sink := policysync.NewDenialSink(policysync.Source{DSN: server.RoleDSN(pgtest.Node)})
	t.Cleanup(sink.Close)
	all := []policysync.DenialEvent{
		{ID: "a-1", Time: time.Now(), Tenant: "acme", Data: json.RawMessage(`{"count": 1}`)},
		{ID: "g-1", Time: time.Now(), Tenant: "globex", Data: json.RawMessage(`{"count": 1}`)},
	}
	if kept, _, err := sink.Report(t.Context(), "gw-1", all); err != nil || kept != policysync.NotWanted {
		t.Errorf("without webhooks: %d, %v", kept, err)
	}
	subscribe(t, server)
	if kept, _, err := sink.Report(t.Context(), "gw-1", all); err != nil || kept != 1 {
		t.Errorf("with a webhook of acme: %d, %v", kept, err)
	}
	server.Kill(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, _, err := sink.Report(ctx, "gw-1", all); err == nil || ctx.Err() != nil {
		t.Errorf("without a server: %v (%v), want an error at once", err, ctx.Err())
	}
	server.Start(t)
	if kept, _, err := sink.Report(t.Context(), "gw-1", all); err != nil || kept != 0 {
		t.Errorf("what waits is kept once: %d, %v", kept, err)
	}
}

func TestTheSnapshotOfANodeHasNothingOfWebhooks(t *testing.T) {
	server := pgtest.Granted(t)
	secret, dir := subscribe(t, server), t.TempDir()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	node, err := policysync.New(policysync.Options{
		Source: policysync.Source{DSN: server.RoleDSN(pgtest.Node)}, Dir: dir, Node: "gw-1",
		Log: slog.New(slog.DiscardHandler), Changed: func(*policy.Snapshot) { stop() },
	})
	if err == nil {
		err = node.Run(ctx)
	}
	require.NoError(t, err)
	files := 0
	err = fs.WalkDir(os.DirFS(dir), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		files++
		text, err := fs.ReadFile(os.DirFS(dir), path)
		for _, form := range []string{
			string(secret), base64.StdEncoding.EncodeToString(secret), hex.EncodeToString(secret), "hooks.example.com", "whsec_",
		} {
			if bytes.Contains(text, []byte(form)) || strings.Contains(path, form) {
				t.Errorf("%s has %q", path, form)
			}
		}
		return err
	})
	if err != nil || files == 0 {
		t.Errorf("the node saved %d files (%v)", files, err)
	}
}
