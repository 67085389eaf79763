package api_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/webhook"
)

const (
	webhooks        = "/v1/orgs/acme/ratelimit/webhooks"
	generalWebhooks = "/v1/ratelimit/webhooks"
	hooked          = `{"url":"https://example.com/webhooks","reason":"the customer asked"}`
)

// shown is the answer with a secret.
type shown struct {
	Webhook rows.Webhook
	Secret  string
}

func TestTheSecretOfAWebhookIsShownOnceAndNowhereElse(t *testing.T) {
	t.Parallel()
	w := open(t)
	made := w.want(w.as("POST", webhooks, hooked, "Idempotency-Key", "k1"), http.StatusCreated)
	first := read[shown](w, made)
	if !strings.HasPrefix(first.Secret, "whsec_") || len(first.Secret) != 50 { // base64 of 32 bytes
		t.Errorf("the secret is %q", first.Secret)
	}
	if at := made.Header().Get("Location"); at != webhooks+"/1" || made.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("the location is %q and the headers are %v", at, made.Header())
	}
	second := read[shown](w, w.want(w.as("POST", webhooks+"/1/rotate", `{}`), http.StatusOK))
	if second.Secret == first.Secret || second.Webhook.RotatedUntil.IsZero() {
		t.Errorf("a rotation shows %+v", second.Webhook)
	}
	for _, secret := range []string{first.Secret, second.Secret} {
		for _, path := range []string{webhooks, webhooks + "/1", webhooks + "/1/deliveries", "/v1/ratelimit/audit"} {
			if a := w.want(w.as("GET", path, ""), http.StatusOK); strings.Contains(a.Body.String(), secret) {
				t.Errorf("%s shows a secret", path)
			}
		}
		if strings.Contains(w.log.String(), secret) {
			t.Error("the log has a secret")
		}
		var stored int
		err := w.pool.QueryRow(t.Context(), `SELECT count(*) FROM rate_limiter.answers
			WHERE position($1 IN answer::text) > 0`, secret).Scan(&stored)
		if err != nil || stored != 0 {
			t.Errorf("%d answers are stored with a secret (%v)", stored, err)
		}
	}
}

func TestTheSchemeOfAWebhookMayHaveCapitals(t *testing.T) {
	t.Parallel()
	w := open(t)
	a := w.want(w.as("POST", webhooks, `{"url":"HTTPS://Example.com/A"}`), http.StatusCreated)
	if !strings.Contains(a.Body.String(), `"url":"https://Example.com/A"`) {
		t.Errorf("the webhook is %s", a.Body)
	}
}

func TestAWebhookIsCheckedBeforeItIsCreated(t *testing.T) {
	t.Parallel()
	w := open(t)
	for body, at := range map[string]string{
		`{}`:                                              "body.url",
		`{"url":"http://example.com/"}`:                   "body.url",
		`{"url":"https://127.0.0.1/"}`:                    "body.url",
		`{"url":"https://[fd00:ec2::254]/"}`:              "body.url",
		`{"url":"https://169.254.169.254/"}`:              "body.url",
		`{"url":"https://example.com:22/"}`:               "body.url",
		`{"url":"https://a:b@example.com/"}`:              "body.url",
		`{"url":"https://example.com/","types":["else"]}`: "body.types",
	} {
		a := w.want(w.as("POST", webhooks, body), http.StatusUnprocessableEntity)
		if !strings.Contains(a.Body.String(), `"location":"`+at+`"`) {
			t.Errorf("%s: %s, want a fault at %s", body, a.Body, at)
		}
	}
	lax := open(t, func(o *api.Options) { o.Webhooks = webhook.Targets{HTTP: true} })
	lax.want(lax.as("POST", webhooks, `{"url":"http://example.com/"}`), http.StatusCreated)
}

func TestAnOrgReadsItsOwnWebhooksAndNoOthers(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.want(w.as("POST", webhooks, hooked), http.StatusCreated)
	w.want(w.as("POST", "/v1/orgs/globex/ratelimit/webhooks", hooked), http.StatusCreated)
	w.want(w.as("POST", generalWebhooks, hooked), http.StatusCreated)
	a := w.want(w.do(call{ofAcme, "GET", webhooks, "", nil}), http.StatusOK)
	var list struct{ Items []rows.Webhook }
	require.NoError(t, json.Unmarshal(a.Body.Bytes(), &list))
	if len(list.Items) != 1 || list.Items[0].ID != 1 || list.Items[0].CreatedBy != "" {
		t.Errorf("the org reads %+v, want its own webhook without who made it", list.Items)
	}
	for _, path := range []string{"/2", "/3", "/2/deliveries", "/3/deliveries"} {
		w.want(w.do(call{ofAcme, "GET", webhooks + path, "", nil}), http.StatusNotFound)
	}
	w.want(w.as("POST", webhooks+"/2/rotate", `{}`), http.StatusNotFound)
	w.want(w.as("DELETE", generalWebhooks+"/1?reason=x", ""), http.StatusNotFound)
	w.want(w.as("DELETE", webhooks+"/1?reason=x", ""), http.StatusNoContent)
}

func TestAnOrgManagesItsOwnWebhooksAndNoOthers(t *testing.T) {
	t.Parallel()
	w := open(t)
	byAcme := func(method, path, body string) answer { return w.do(call{ofAcme, method, path, body, nil}) }
	w.want(w.as("POST", "/v1/orgs/globex/ratelimit/webhooks", hooked), http.StatusCreated)
	w.want(w.as("POST", generalWebhooks, hooked), http.StatusCreated)
	w.want(byAcme("POST", webhooks, hooked), http.StatusCreated)
	for _, a := range []answer{
		byAcme("POST", webhooks+"/3/rotate", `{}`), byAcme("POST", webhooks+"/3/disable", `{}`),
		byAcme("POST", webhooks+"/3/enable", `{}`), byAcme("POST", webhooks+"/3/test", `{}`),
	} {
		if w.want(a, http.StatusOK); strings.Contains(a.Body.String(), "acme-portal") {
			t.Errorf("%s shows who made the webhook: %s", a.call.path, a.Body)
		}
	}
	for _, other := range []string{webhooks + "/1", webhooks + "/2"} {
		for _, verb := range []string{"rotate", "disable", "enable", "test"} {
			w.want(byAcme("POST", other+"/"+verb, `{}`), http.StatusNotFound)
		}
		w.want(byAcme("DELETE", other+"?reason=x", ""), http.StatusNotFound)
	}
	w.want(byAcme("POST", generalWebhooks, hooked), http.StatusForbidden)
	w.want(w.do(call{viewer, "POST", webhooks, hooked, nil}), http.StatusForbidden)
	w.want(byAcme("DELETE", webhooks+"/3?reason=x", ""), http.StatusNoContent)
	if a := w.as("GET", "/v1/ratelimit/audit?tenant=acme", ""); !strings.Contains(a.Body.String(), "token:acme-portal") {
		t.Errorf("the audit does not name the token: %s", a.Body)
	}
}

func TestAWebhookIsTestedAtMostSoOftenAnHour(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	w := open(t, func(o *api.Options) { o.Metrics = registry })
	w.want(w.as("POST", webhooks, hooked), http.StatusCreated)
	for range rows.MaxWebhookTests {
		w.want(w.as("POST", webhooks+"/1/test", `{}`), http.StatusOK)
	}
	a := w.want(w.as("POST", webhooks+"/1/test", `{}`), http.StatusConflict)
	if !strings.Contains(a.Body.String(), "within an hour") {
		t.Errorf("the answer is %s", a.Body)
	}
	const sooner = `UPDATE rate_limiter.webhook_deliveries SET created_at = created_at - interval '61 minutes'`
	pgtest.Exec(t, w.pool, sooner)
	w.want(w.as("POST", webhooks+"/1/test", `{}`), http.StatusOK)
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(
		"# HELP rate_limiter_control_writes_total Writes that succeeded, by the kind of what was written.\n"+
			"# TYPE rate_limiter_control_writes_total counter\nrate_limiter_control_writes_total{kind=\"webhook\"} 1\n",
	), "rate_limiter_control_writes_total"), "a test is no write")
}
