package sender

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/webhook"
)

func TestEventsArriveInSignedBatchesAtTheWebhooksThatWantThem(t *testing.T) {
	w := newWorld(t)
	ofAcme, ofAll, other := w.newReceiver(status(200)), w.newReceiver(status(204)), w.newReceiver(status(200))
	secret, id := w.subscribe("acme", ofAcme.URL)
	w.subscribe("", ofAll.URL, string(events.QuotaThreshold))
	w.subscribe("acme", other.URL, string(events.Denial))
	w.happen("acme", 120)
	w.happen("globex", 1)
	w.work()
	w.want(other, 0)
	got := w.want(ofAcme, 2) // 100 and 20
	assert.NoError(t, webhook.Verify(got[0].header, got[0].body, w.clock(), secret))
	assert.Equal(t, events.BatchMediaType, got[0].header.Get("Content-Type"), "the content type")
	if len(got[0].events) != 100 || len(got[1].events) != 20 {
		t.Errorf("the batches have %d and %d events, want 100 and 20", len(got[0].events), len(got[1].events))
	}
	e := got[0].events[0]
	if e.Subject != "acme" || e.Type != string(events.QuotaThreshold) || e.Data["threshold"] != 80.0 ||
		e.Data["inner"] != nil {
		t.Errorf("the event of the org is %+v, want it without what the org may not read", e)
	}
	all := w.want(ofAll, 2)
	if len(all[1].events) != 21 || all[0].events[0].Data["inner"] != "private" {
		t.Errorf("the webhook of all orgs has %+v", all[1].events)
	}
	hook := w.hook(id)
	if hook.DeliveredAt.IsZero() || hook.Waiting != 0 || hook.Failures != 0 {
		t.Errorf("the webhook is listed as %+v", hook)
	}
	w.work()
	w.want(ofAcme, 2)
}

func TestDenialsOfNodesArriveAtTheWebhooksThatWantThem(t *testing.T) {
	w := newGrantedWorld(t)
	node := pgtest.Pool(t, w.granted.RoleDSN(pgtest.Node))
	var dropped []string
	report := func(text string) (kept int) {
		t.Helper()
		row := node.QueryRow(t.Context(), `SELECT kept, dropped FROM rate_limiter.report_denials('edge 1', $1)`, text)
		require.NoError(t, row.Scan(&kept, &dropped))
		return kept
	}
	denial := func(id, org string) string {
		return fmt.Sprintf(`{"event": %q, "at": "2026-11-22T14:20:07Z", "tenant": %q, "data":
			{"count": 3, "policy": "all", "scope": "global", "limit": {"quantity": 9}}}`, id, org)
	}
	assert.EqualValues(t, -1, report("["+denial("a-1", "acme")+"]"), "without webhooks denials are kept")
	ofAcme := w.newReceiver(status(200))
	w.subscribe("acme", ofAcme.URL)
	if kept := report("[" + denial("a-1", "acme") + "," + denial("g-1", "globex") + "," + denial("a-2", "acme") + "," +
		strings.Replace(denial("a-3", "acme"), "a-3", `a-3\u0001`, 1) + "]"); kept != 3 {
		t.Errorf("%d are kept, want those of acme", kept)
	}
	assert.Zero(t, report("["+denial("a-1", "acme")+"]"), "denials that wait are kept once more")
	w.work()
	got := w.want(ofAcme, 1)[0].events
	if len(got) != 2 || got[0].ID != "a-1" || got[1].ID != "a-2" || got[0].Source != "/nodes/edge%201" ||
		got[0].Type != string(events.Denial) || got[0].Data["count"] != 3.0 || got[0].Data["limit"] != nil {
		t.Errorf("arrived: %+v, want two denials without the number of a shared limit", got)
	}
	var flood []string
	for i := range 1200 {
		flood = append(flood, denial(fmt.Sprint("f-", i), "acme"))
	}
	if kept := report("[" + strings.Join(flood, ",") + "]"); kept != 1000 || len(dropped) != 200 {
		t.Errorf("%d of a flood are kept and %d dropped, want 1000 of a tenant", kept, len(dropped))
	}
	if kept := report("[" + flood[0] + "," + flood[1100] + "]"); kept != 0 || !slices.Equal(dropped, []string{"f-1100"}) {
		t.Errorf("of one that waits and one more %d are kept and %q dropped, want the second dropped", kept, dropped)
	}
	w.work()
	w.want(ofAcme, 11)
}

func TestATestEventArrives(t *testing.T) {
	w := newWorld(t)
	r := w.newReceiver(status(200))
	_, id := w.subscribe("acme", r.URL, string(events.Denial))
	d, err := w.store.TestWebhook(t.Context(), ann, id)
	require.NoError(t, err)
	w.work()
	got := w.want(r, 1)
	if got[0].header.Get("webhook-id") != d.ID || got[0].events[0].Type != string(events.WebhookTest) {
		t.Errorf("arrived: %+v", got[0])
	}
	list, err := w.store.Deliveries(t.Context(), id, "", 10)
	if err != nil || len(list) != 1 || list[0].State != stateDelivered || list[0].Status != 200 {
		t.Errorf("the deliveries are %+v (%v)", list, err)
	}
}

func TestATestIsSentAtOnceAlsoAfterAFailure(t *testing.T) {
	w := newWorld(t)
	r := w.newReceiver(status(500))
	_, id := w.subscribe("acme", r.URL)
	w.happen("acme", 1)
	w.work()
	w.work()
	w.want(r, 1)
	_, err := w.store.TestWebhook(t.Context(), ann, id)
	require.NoError(t, err)
	w.work()
	assert.Equal(t, string(events.WebhookTest), w.want(r, 2)[1].events[0].Type)
}

func TestAFailedDeliveryIsSentAgainWithGrowingDelaysAndTheSameIDAndBody(t *testing.T) {
	w := newWorld(t)
	r := w.newReceiver(status(500))
	secret, id := w.subscribe("acme", r.URL)
	w.happen("acme", 1)
	w.work()
	first := w.want(r, 1)[0]
	for i, delay := range []time.Duration{5 * time.Second, 20 * time.Second, 80 * time.Second, 320 * time.Second} {
		w.pass(delay * 9 / 10)
		w.work()
		w.want(r, i+1)
		w.pass(delay / 10)
		w.work()
		again := w.want(r, i+2)[i+1]
		if string(again.body) != string(first.body) || again.header.Get("webhook-id") != first.header.Get("webhook-id") {
			t.Errorf("try %d has another id or body", i+2)
		}
		assert.NotEqual(t, first.header.Get("webhook-timestamp"), again.header.Get("webhook-timestamp"),
			"try %d has the timestamp of the first one", i+2)
		assert.NoError(t, webhook.Verify(again.header, again.body, w.clock(), secret))
	}
	if hook := w.hook(id); hook.Failures != 5 || hook.LastError != "answered 500" || hook.FailingSince.IsZero() {
		t.Errorf("the webhook is listed as %+v", hook)
	}
	r.answer = status(200)
	w.pass(time.Hour)
	w.work()
	w.want(r, 6)
	if hook := w.hook(id); hook.Failures != 0 || hook.LastError != "" || !hook.FailingSince.IsZero() {
		t.Errorf("after a success the webhook is listed as %+v", hook)
	}
}

func TestADeliveryThatAReceiverDeniesDoesNotBlockTheNextOne(t *testing.T) {
	w := newWorld(t)
	bad := ""
	r := w.newReceiver(nil)
	r.answer = func(to http.ResponseWriter, request *http.Request) {
		if request.Header.Get("webhook-id") == bad {
			to.WriteHeader(400)
		}
	}
	_, id := w.subscribe("acme", r.URL)
	d, err := w.store.TestWebhook(t.Context(), ann, id)
	require.NoError(t, err)
	bad = d.ID
	w.work()
	w.happen("acme", 1)
	for _, delay := range []time.Duration{5 * time.Second, 20 * time.Second} {
		w.pass(delay)
		w.work()
	}
	delivered, err := w.store.Deliveries(t.Context(), id, stateDelivered, 10)
	if err != nil || len(delivered) != 1 {
		t.Errorf("delivered: %+v (%v), want the one that is not denied", delivered, err)
	}
}

func TestAReceiverThatIsGoneDisablesItsWebhookAtOnce(t *testing.T) {
	w := newWorld(t)
	r, ofAll := w.newReceiver(status(410)), w.newReceiver(status(200))
	_, id := w.subscribe("acme", r.URL)
	w.subscribe("", ofAll.URL, string(events.WebhookDisabled))
	w.happen("acme", 1)
	w.work()
	w.happen("acme", 1)
	w.pass(24 * time.Hour)
	w.work()
	w.want(r, 1)
	hook := w.hook(id)
	if hook.Enabled || hook.DisabledFor != "the receiver answered 410 Gone" {
		t.Errorf("the webhook is listed as %+v", hook)
	}
	e := w.want(ofAll, 1)[0].events[0]
	if e.Type != string(events.WebhookDisabled) || e.Subject != "acme" || e.Data["reason"] != hook.DisabledFor {
		t.Errorf("the event is %+v", e)
	}
	published, err := jsonschema.NewCompiler().Compile("../../../../schema/webhook_disabled.schema.json")
	require.NoError(t, err)
	assert.NoError(t, published.Validate(any(e.Data)), "the data of the event")
	assert.Contains(t, w.log.String(), "a webhook was disabled", "the log")
	entries, err := w.store.Audit(t.Context(), rows.AuditFilter{Kind: "webhook", Max: 1})
	if err != nil || len(entries) != 1 || entries[0].Operation != "update" || entries[0].Reason != hook.DisabledFor ||
		entries[0].Actor != "webhooks" || entries[0].Tenant != "acme" {
		t.Errorf("the audit has %+v (%v)", entries, err)
	}
	_, err = w.store.EnableWebhook(t.Context(), ann, id, true)
	require.NoError(t, err)
	r.answer = status(200)
	w.work()
	w.want(r, 2) // what had waited; the event while it was disabled is not kept
}

func TestADayOfFailuresDisablesAWebhook(t *testing.T) {
	w := newWorld(t)
	r := w.newReceiver(status(503))
	_, id := w.subscribe("acme", r.URL)
	w.happen("acme", 1)
	for range 12 {
		w.work()
		w.pass(2 * time.Hour)
	}
	if hook := w.hook(id); !hook.Enabled || hook.Failures < 5 {
		t.Fatalf("after 24 hours without a try the webhook is %+v", hook)
	}
	w.pass(4 * time.Hour)
	w.work()
	if hook := w.hook(id); hook.Enabled || !strings.Contains(hook.DisabledFor, "the last one: answered 503") {
		t.Errorf("after a day of failures the webhook is %+v", hook)
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	w := newWorld(t)
	r := w.newReceiver(func(to http.ResponseWriter, _ *http.Request) {
		to.Header().Set("Retry-After", "600")
		to.WriteHeader(503)
	})
	w.subscribe("acme", r.URL)
	w.happen("acme", 1)
	w.work()
	w.happen("acme", 1) // the receiver wants this one later too
	w.pass(599 * time.Second)
	w.work()
	w.want(r, 1)
	w.pass(time.Second)
	w.work()
	w.want(r, 2)
}

func TestBothSecretsSignForADayAfterARotation(t *testing.T) {
	w := newWorld(t)
	r := w.newReceiver(status(200))
	old, id := w.subscribe("acme", r.URL)
	fresh, hook, err := w.store.RotateWebhook(t.Context(), ann, id, false)
	if err != nil || hook.RotatedUntil.IsZero() {
		t.Fatalf("rotated: %+v, %v", hook, err)
	}
	w.happen("acme", 1)
	w.work()
	w.pass(24 * time.Hour)
	w.happen("acme", 1)
	w.work()
	got := w.want(r, 2)
	for i, m := range got {
		at := w.clock().Add(time.Duration(i-1) * 24 * time.Hour)
		assert.NoError(t, webhook.Verify(m.header, m.body, at, fresh), "delivery %d by the new secret", i)
		err := webhook.Verify(m.header, m.body, at, old)
		assert.EqualValues(t, (i == 0), (err == nil), "delivery %d by the old secret: %v", i, err)
	}
	_, _, err = w.store.RotateWebhook(t.Context(), ann, id, true)
	require.NoError(t, err)
	w.happen("acme", 1)
	w.work()
	last := w.want(r, 3)[2]
	assert.Error(t, webhook.Verify(last.header, last.body, w.clock(), fresh),
		"a secret that was ended at once still signs")
}

func TestTheClockOfTheDatabaseCountsAndNotThatOfTheProcess(t *testing.T) {
	w := newWorld(t)
	w.options.Clock = nil
	w.pass(-3 * time.Hour) // two hours behind the database
	w.restart()
	r := w.newReceiver(status(200))
	secret, id := w.subscribe("acme", r.URL)
	pgtest.Exec(t, w.pool, `INSERT INTO rate_limiter.webhook_deliveries
			(id, webhook, events, body, created_at, due_at)
		VALUES ('msg_1', $1, 1, '[{}]', clock_timestamp() - interval '1 hour', clock_timestamp())`, id)
	w.work()
	assert.NoError(t, webhook.Verify(w.want(r, 1)[0].header, r.messages()[0].body, time.Now(), secret),
		"by the clock of the database")
}

func TestEventsThatDoNotFitAQueueAreDroppedAndCounted(t *testing.T) {
	w := newWorld(t)
	r := w.newReceiver(status(500))
	_, id := w.subscribe("acme", r.URL)
	pgtest.Exec(t, w.pool, `INSERT INTO rate_limiter.webhook_deliveries
			(id, webhook, events, body, created_at, due_at)
		SELECT 'm' || i, $1, 1, '[]', $2::timestamptz, $2::timestamptz + interval '1 hour' FROM generate_series(1, $3) i`,
		id, w.clock(), maxWaiting-1)
	w.happen("acme", 250)
	w.work()
	if hook := w.hook(id); hook.Dropped != 150 || hook.Waiting != maxWaiting {
		t.Errorf("dropped %d and waiting %d, want 150 events and %d deliveries", hook.Dropped, hook.Waiting, maxWaiting)
	}
	w.pass(webhook.KeepTrying + time.Minute)
	w.work()
	w.pass(choresEvery)
	w.work()
	if hook := w.hook(id); hook.Waiting != 0 || hook.Dropped != 150+100+maxWaiting-1 {
		t.Errorf("after the time for tries %d are dropped and %d wait, want all given up", hook.Dropped, hook.Waiting)
	}
	assert.EqualValues(t, 150+100+maxWaiting-1, w.sender.Stats().Dropped, "the sender counts")
}

func TestWhatALostSenderHasDeliveredButNotRecordedIsSentOnceMore(t *testing.T) {
	w := newWorld(t)
	r := w.newReceiver(nil)
	r.answer = func(to http.ResponseWriter, _ *http.Request) {
		if len(r.messages()) == 1 { // the sender's session dies before it can record the answer
			if _, err := w.pool.Exec(context.WithoutCancel(t.Context()), `SELECT pg_terminate_backend(pid, 10000)
				FROM pg_locks WHERE locktype = 'advisory' AND database = (
					SELECT oid FROM pg_database WHERE datname = current_database())`); err != nil {
				t.Error(err)
			}
		}
		to.WriteHeader(200)
	}
	w.subscribe("acme", r.URL)
	w.happen("acme", 1)
	w.session.close()
	w.options.Every = time.Millisecond
	w.sender = New(w.options)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- w.sender.Run(ctx) }()
	await.That(t, "a second delivery is recorded", func() bool { return w.sender.Stats().Delivered == 1 })
	stop()
	assert.NoError(t, <-ended)
	got := w.want(r, 2)
	if got[0].header.Get("webhook-id") != got[1].header.Get("webhook-id") || string(got[0].body) != string(got[1].body) {
		t.Error("the second delivery has another id or body")
	}
	w.restart()
}

func TestARequestThatOutlastsTheDrainTimeIsAbortedAndSentAgain(t *testing.T) {
	w := newWorld(t)
	ctx, stop := context.WithCancel(t.Context())
	r := w.newReceiver(func(_ http.ResponseWriter, request *http.Request) {
		stop()
		<-request.Context().Done()
	})
	_, id := w.subscribe("acme", r.URL)
	w.happen("acme", 1)
	w.session.close()
	w.options.Drain = time.Millisecond
	w.sender = New(w.options)
	require.NoError(t, w.sender.Run(ctx))
	if hook := w.hook(id); hook.Waiting != 1 || hook.Failures != 0 {
		t.Errorf("the webhook is %+v, want the delivery waiting and no failure", hook)
	}
	r.answer = status(200)
	w.restart()
	w.work()
	w.want(r, 2)
}

func TestTheSenderNeedsOnlyTheRightsOfAKeeper(t *testing.T) {
	// The store's role is that of the REST API, the sender's that of the keeper.
	w := newGrantedWorld(t)
	r := w.newReceiver(status(410))
	_, id := w.subscribe("", r.URL)
	_, _, err := w.store.RotateWebhook(t.Context(), ann, id, false)
	require.NoError(t, err)
	_, err = w.store.TestWebhook(t.Context(), ann, id)
	require.NoError(t, err)
	w.work()
	w.want(r, 1)
	assert.False(t, w.hook(id).Enabled, "the webhook is not disabled")
	w.pass(deliveriesKept + time.Hour)
	w.work()
	require.NoError(t, w.store.DeleteWebhook(t.Context(), ann, id))
	w.want(r, 1)
	var left int
	err = w.pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM rate_limiter.webhook_deliveries)
		+ (SELECT count(id) FROM rate_limiter.webhook_secrets)`).Scan(&left)
	if err != nil || left != 0 {
		t.Errorf("%d rows are left (%v)", left, err)
	}
	_, err = w.pool.Exec(t.Context(), `SELECT secret FROM rate_limiter.webhook_secrets`)
	if err == nil || !strings.Contains(fmt.Sprint(err), "permission denied") {
		t.Errorf("the role of the REST API reads secrets: %v", err)
	}
}
