package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const (
	abuseList   = "/v1/ratelimit/abuse"
	acmeAbuse   = "/v1/orgs/acme/ratelimit/abuse"
	acmeForgive = acmeAbuse + "/forgive"
)

// onLadder puts acme on a step under enforce, with its penalty, and globex on a warning.
func onLadder(w *world) {
	w.Helper()
	_, err := w.pool.Exec(w.Context(), `WITH penalty AS (
			INSERT INTO rate_limiter.overrides (kind, tenant, factor, reason, author, source, expires_at)
			VALUES ('multiplier', 'acme', 500, 'abuse detection', 'abuse detector', 'detector', now() + interval '1 hour')
			RETURNING id, expires_at)
		INSERT INTO rate_limiter.abuse_tenants (tenant, state, mode, reason, scored_at, override, override_until)
		SELECT 'acme', '{"step": "half", "since": "2026-11-22T10:00:00Z", "flagged_at": "2026-11-22T10:05:00Z",
			"demand": {"mean": 120.5, "variance": 9, "learned": 300}}'::jsonb, 'enforce', 'denied 90 %', now(), id, expires_at
		FROM penalty
		UNION ALL SELECT 'globex', '{"step": "warn"}', 'enforce', 'denied 85 %', now(), NULL, NULL
		UNION ALL SELECT 'calm', '{"step": "none"}', 'enforce', '', now(), NULL, NULL`)
	if err == nil {
		_, err = w.pool.Exec(w.Context(), `INSERT INTO rate_limiter.abuse_steps (at, tenant, from_step, to_step, mode, reason)
			VALUES (now(), 'acme', 'warn', 'half', 'enforce', 'denied 90 %')`)
	}
	require.NoError(w, err)
}

func TestAForgivenOrgIsOnNoStepAndItsPenaltyIsOver(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.want(w.as("POST", acmeForgive, `{"reason":"a load test"}`), http.StatusNotFound)
	onLadder(w)
	before := read[rows.AbuseHistory](w, w.want(w.as("GET", acmeAbuse, ""), http.StatusOK))
	if before.Step != "half" || before.Override == nil || before.Usual != 120.5 || len(before.Moves) != 1 {
		t.Fatalf("before it is %+v", before)
	}
	key := []string{"Idempotency-Key", "k"}
	done := read[answers.OrgForgiven](w, w.want(w.as("POST", acmeForgive, `{"reason":"a load test","for":"2h"}`, key...),
		http.StatusOK))
	if len(done.Overrides) != 1 || done.Overrides[0] != *before.Override || done.Version == 0 {
		t.Errorf("it is forgiven by %+v", done)
	}
	after := read[rows.AbuseHistory](w, w.want(w.as("GET", acmeAbuse, ""), http.StatusOK))
	if after.Step != "none" || after.Override != nil || after.ForgivenUntil == nil || after.Usual != 120.5 ||
		after.Moves[0].Reason != "forgiven by token:ann: a load test" {
		t.Errorf("after it is %+v", after)
	}
	again := w.want(w.as("POST", acmeForgive, `{"reason":"a load test","for":"2h"}`, key...), http.StatusOK)
	if again.Header().Get("Idempotent-Replayed") != "true" {
		t.Error("a retry forgives again")
	}
	entries := w.want(w.as("GET", "/v1/ratelimit/audit?tenant=acme", ""), http.StatusOK).Body.String()
	for _, want := range []string{`"forgive"`, `"a load test"`, `"token:ann"`} {
		if !strings.Contains(entries, want) {
			t.Errorf("the audit lacks %s: %s", want, entries)
		}
	}
}

func TestAForgivenessWithoutAReasonOrTooLongIsDenied(t *testing.T) {
	t.Parallel()
	w := open(t)
	for body, path := range map[string]string{
		`{"reason":" "}`: "body.reason", `{"reason":"x","for":"31d"}`: "body.for", `{"reason":"x","for":"soon"}`: "body.for",
	} {
		w.wantFaults(w.as("POST", acmeForgive, body), path)
	}
}

func TestTheTenantsOfAbuseHavePages(t *testing.T) {
	t.Parallel()
	w := open(t)
	onLadder(w)
	var seen []string
	for next := ""; ; {
		answer := w.want(w.as("GET", abuseList+"?limit=1&cursor="+next, ""), http.StatusOK)
		page := read[answers.Page[rows.AbuseState]](w, answer)
		for _, row := range page.Items {
			seen = append(seen, row.Tenant)
		}
		if next = page.NextCursor; next == "" {
			break
		}
	}
	if got := strings.Join(seen, ", "); got != "acme, globex" {
		t.Errorf("the pages have %s", got)
	}
}

const tokens = "/v1/ratelimit/tokens"
