package spec

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
)

// hookEvent is an event that a webhook got.
type hookEvent struct {
	ID, Source, Type, Subject string
	Data                      struct {
		Count int
		Kind  string
		After map[string]any
	}
}

// hookReceiver is a server for webhooks, which verifies what it gets.
type hookReceiver struct {
	*httptest.Server
	t testing.TB

	mu     sync.Mutex
	secret string
	events map[string]hookEvent // by source and id
}

func newHookReceiver(t testing.TB) *hookReceiver {
	t.Helper()
	r := &hookReceiver{t: t, events: map[string]hookEvent{}}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

// ServeHTTP implements [http.Handler].
func (r *hookReceiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return // the sender was killed
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := verifyHook(request.Header, body, r.secret); err != nil {
		r.t.Error(err)
	}
	var batch []hookEvent
	if err := json.Unmarshal(body, &batch); err != nil {
		r.t.Errorf("%v: %s", err, body)
	}
	for _, e := range batch {
		r.events[e.Source+" "+e.ID] = e
	}
	w.WriteHeader(http.StatusNoContent)
}

// verifyHook returns an error if a delivery was not signed by a secret.
func verifyHook(header http.Header, body []byte, secret string) error {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		return err
	}
	sum := hmac.New(sha256.New, key)
	fmt.Fprintf(sum, "%s.%s.%s", header.Get("Webhook-Id"), header.Get("Webhook-Timestamp"), body)
	want := "v1," + base64.StdEncoding.EncodeToString(sum.Sum(nil))
	if got := strings.Fields(header.Get("Webhook-Signature")); !slices.Contains(got, want) {
		return fmt.Errorf("the signatures are %q, want %q", got, want)
	}
	return nil
}

// count returns how many denials the events count, and how many changes of overrides they report.
func (r *hookReceiver) count() (denials, overrides int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		denials += e.Data.Count
		if e.Data.Kind == "override" {
			overrides++
		}
		if e.Subject != "acme" || e.Data.After["reason"] != nil {
			r.t.Errorf("the tenant gets %+v", e)
		}
	}
	return denials, overrides
}

func TestDenialsAndChangesReachAWebhookAlsoWhenTheLeaderIsKilled(t *testing.T) {
	t.Parallel()
	p := planeOf(t, `tiers: [{name: enterprise, limits: [{name: year, scope: tenant, limit: 1, window_size: 31536000}]}]`)
	r := newHookReceiver(t)
	here := []string{"--webhook-allow-http", "--webhook-allow-private", "127.0.0.1"}
	leader := p.serve(here...)
	var made struct{ Secret string }
	leader.want(http.StatusCreated, &made, http.MethodPost, "/v1/orgs/acme/ratelimit/webhooks",
		fmt.Sprintf(`{"url": %q, "reason": "they asked"}`, r.URL))
	r.mu.Lock()
	r.secret = made.Secret
	r.mu.Unlock()

	n := start(t, deck(p.config), serverWith("-database", p.dsn, "-snapshot-dir", "off", "-metrics-listen", "off",
		"-node-name", "one", "-denial-webhooks", "on"))
	n.want([]int{200, 429, 429, 429}, "/records", "apikey", "alice")
	await.That(t, "the denials arrive", func() bool { denials, _ := r.count(); return denials == 3 })

	next := p.serve(here...)
	const ban = `{"kind": "ban", "user": "mallory", "reason": "abuse", "permanent": true}`
	next.want(http.StatusCreated, nil, http.MethodPost, "/v1/orgs/acme/ratelimit/overrides", ban)
	await.That(t, "the change arrives", func() bool { _, overrides := r.count(); return overrides == 1 })
	require.NoError(t, leader.cmd.Process.Kill())
	<-leader.ended
	next.want(http.StatusCreated, nil, http.MethodPost, "/v1/orgs/acme/ratelimit/overrides",
		strings.Replace(ban, "mallory", "trudy", 1))
	await.That(t, "a change after the leader was killed arrives", func() bool {
		_, overrides := r.count()
		return overrides == 2
	})
	if denials, _ := r.count(); denials != 3 {
		t.Errorf("%d denials arrived, want 3", denials)
	}
}
