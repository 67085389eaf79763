package policysync_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/webhook"
)

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
