package abuse

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// scraped is a minute of a scraper.
var scraped = minute{admitted: 100, denied: 900, addresses: 3}

func TestAScraperIsFlaggedInShadowWithoutAPenaltyAndGetsOneUnderEnforce(t *testing.T) {
	w := newWorld(t)
	w.past("acme", repeat(8, scraped)...)
	w.detect(Shadow)
	if step, got := w.step("acme"), w.penalties("acme"); step != "half" || got != "" {
		t.Errorf("in shadow it is on %s with the penalties %q, want half and none", step, got)
	}
	w.past("acme", repeat(8, scraped)...)
	w.detect(Enforce)
	if step, got := w.step("acme"), w.penalties("acme"); step != "half" || got != "multiplier 500 by abuse detector" {
		t.Errorf("under enforce it is on %s with the penalties %q, want half and its override", step, got)
	}
	reason := w.text(`SELECT reason FROM rate_limiter.overrides`)
	const want = "of its 5000 requests in 5 minutes were denied (90 %, a flag from 80 %)"
	assert.Contains(t, reason, want, "the reason")
	const moves = "none warn shadow, warn half shadow, half none shadow, none warn enforce, warn half enforce"
	if got := w.text(`SELECT string_agg(from_step || ' ' || to_step || ' ' || mode, ', ' ORDER BY id)
		FROM rate_limiter.abuse_steps`); got != moves {
		t.Errorf("the moves are %q, want %q", got, moves)
	}
	assert.Equal(t, "4", w.text(`SELECT count(*)::text FROM rate_limiter.outbox WHERE type LIKE '%abuse.step'`),
		"events of moves are in the outbox")
	w.checkEvent(w.text(`SELECT data::text FROM rate_limiter.outbox WHERE type LIKE '%abuse.step'
		ORDER BY id DESC LIMIT 1`))
	actors := w.text(`SELECT string_agg(actor, ', ') FROM rate_limiter.audit WHERE kind = 'override'`)
	assert.Equal(t, "abuse detector", actors, "the audit has the changes")
}

func TestAPenaltyIsReplacedAsTheTenantClimbsAndEndsWhenItIsQuiet(t *testing.T) {
	w := newWorld(t)
	w.past("acme", repeat(13, scraped)...)
	w.detect(Enforce)
	assert.Equal(t, "multiplier 100 by abuse detector", w.penalties("acme"), "on %s the penalties", w.step("acme"))
	w.past("acme", repeat(5, minute{admitted: 10, denied: 990})...) // under its penalty
	w.exec(`UPDATE rate_limiter.abuse_tenants SET state = state || jsonb_build_object('since',
		clock_timestamp() - interval '20 minutes')`)
	w.detect(Enforce)
	assert.Equal(t, "ban by abuse detector", w.penalties("acme"), "on %s the penalties", w.step("acme"))
	w.exec(`UPDATE rate_limiter.abuse_tenants SET state = state || jsonb_build_object('step', 'half', 'since',
		clock_timestamp() - interval '1 hour', 'flagged_at', clock_timestamp() - interval '1 hour')`)
	w.past("acme", repeat(2, minute{admitted: 10})...)
	w.detect(Enforce)
	if step, got := w.step("acme"), w.penalties("acme"); step != "warn" || got != "" {
		t.Errorf("quiet, it is on %s with the penalties %q", step, got)
	}
	ended := w.text(`SELECT count(*)::text FROM rate_limiter.override_history WHERE ended_by = 'abuse detector'`)
	assert.Equal(t, "2", ended, "penalties are in the history")
}

func TestModesThatDoNotEnforceLiftPenaltiesAtOnce(t *testing.T) {
	for _, mode := range []Mode{Shadow, Off} {
		w := newWorld(t)
		w.past("acme", repeat(8, scraped)...)
		w.detect(Enforce)
		w.exec(`INSERT INTO rate_limiter.overrides (kind, tenant, reason, author, expires_at)
			VALUES ('ban', 'beta', 'fraud', 'ann', now() + interval '1 day')`)
		w.exec(`INSERT INTO rate_limiter.overrides (kind, tenant, factor, reason, author, source, expires_at)
			VALUES ('multiplier', 'gamma', 300, 'by another detector', 'waf', 'detector', now() + interval '1 day')`)
		w.detect(mode)
		if got := w.penalties("acme"); got != "" || w.step("acme") != "none" {
			t.Errorf("%s: on %s the penalties are %q", mode, w.step("acme"), got)
		}
		assert.Equal(t, "ann waf", w.text(`SELECT string_agg(author, ' ' ORDER BY id) FROM rate_limiter.overrides`),
			"%s: the overrides of are left", mode)
	}
}

func TestExemptTenantsAreOnNoStep(t *testing.T) {
	w := newWorld(t)
	w.exec(`INSERT INTO rate_limiter.tenants (id, tier) VALUES ('own', 'internal'), ('gold', 'gold')`)
	w.exec(`INSERT INTO rate_limiter.overrides (kind, tenant, endpoint, reason, author, permanent) VALUES
		('exempt', 'partner', '', 'contract', 'ann', true), ('exempt', 'hook', 'GET /h', 'webhook', 'ann', true)`)
	w.exec(`INSERT INTO rate_limiter.overrides (kind, tenant, reason, author, permanent, starts_at, source) VALUES
		('exempt', 'gold', 'contract from 2099 on', 'ann', true, '2099-01-01', 'scheduled')`)
	for _, name := range []string{"own", "gold", "partner", "hook"} {
		w.past(name, repeat(29, scraped)...)
	}
	w.detect(Enforce)
	for name, want := range map[string]string{"own": "none", "partner": "none", "gold": "ban_1h", "hook": "tenth"} {
		assert.Equal(t, want, w.step(name), "%s", name)
	}
	own := w.text(`SELECT string_agg(reason, ', ' ORDER BY id) FROM rate_limiter.overrides WHERE author = 'ann'`)
	assert.Equal(t, "contract, webhook, contract from 2099 on", own, "the operator's overrides")
}

func TestAPenaltyThatAnOperatorEndsStaysAway(t *testing.T) {
	w := newWorld(t)
	w.past("acme", repeat(8, scraped)...)
	w.detect(Enforce)
	w.exec(`BEGIN; SET LOCAL rate_limiter.reason = 'a customer of ours'; DELETE FROM rate_limiter.overrides; COMMIT`)
	w.past("acme", repeat(8, scraped)...)
	w.detect(Enforce)
	if step, got := w.step("acme"), w.penalties("acme"); step != "none" || got != "" {
		t.Errorf("it is on %s with the penalties %q, want that the operator's word stays", step, got)
	}
	if got := w.text(`SELECT reason FROM rate_limiter.abuse_steps ORDER BY id DESC LIMIT 1`); !strings.Contains(got,
		"an operator ended override") {
		t.Errorf("the last move is because %q", got)
	}
}

func TestAForgivenTenantLosesItsStep(t *testing.T) {
	w := newWorld(t)
	w.past("acme", repeat(8, scraped)...)
	w.detect(Enforce)
	w.exec(`BEGIN; SET LOCAL rate_limiter.actor = 'ann'; SET LOCAL rate_limiter.reason = 'a load test';
		SELECT rate_limiter.forgive_abuse('acme', '1 hour'); DELETE FROM rate_limiter.overrides; COMMIT`)
	w.past("acme", repeat(8, scraped)...)
	w.detect(Enforce)
	if step, got := w.step("acme"), w.penalties("acme"); step != "none" || got != "" {
		t.Errorf("it is on %s with the penalties %q", step, got)
	}
	const want = "forgiven by ann: a load test"
	assert.Equal(t, want, w.text(`SELECT reason FROM rate_limiter.abuse_steps ORDER BY id DESC LIMIT 1`),
		"the last move is because")
	event := w.text(`SELECT data::text FROM rate_limiter.outbox WHERE type LIKE '%abuse.step' ORDER BY id DESC LIMIT 1`)
	if w.checkEvent(event); !strings.Contains(event, want) {
		t.Errorf("the last event is %s", event)
	}
	w.exec(`UPDATE rate_limiter.abuse_tenants SET forgiven_until = now() - interval '1 hour'`)
	w.past("acme", repeat(3, scraped)...)
	w.detect(Enforce)
	assert.Equal(t, "warn", w.step("acme"), "after the time")
}

func TestManyDifferentAddressesFlagATenantWhoseBaselineIsSmall(t *testing.T) {
	w := newWorld(t)
	stuffing := minute{admitted: 600, denied: 400, addresses: 128}
	w.past("acme", repeat(3, stuffing)...)
	w.detect(Shadow)
	assert.Equal(t, "none", w.step("acme"), "without a baseline")
	w.exec(`UPDATE rate_limiter.abuse_tenants SET state = '{"step": "none",
		"demand": {"mean": 900, "variance": 900, "learned": 200}, "users": {"mean": 1, "variance": 1, "learned": 200},
		"addresses": {"mean": 12, "variance": 30, "learned": 200},
		"credentials": {"mean": 1, "variance": 1, "learned": 200}}'`)
	w.past("acme", repeat(3, stuffing)...)
	w.detect(Shadow)
	reason := w.text(`SELECT reason FROM rate_limiter.abuse_tenants`)
	const want = "different addresses were denied in 5 minutes, usually 12"
	if got := w.step("acme"); got != "warn" || !strings.Contains(reason, want) {
		t.Errorf("it is on %s, because %s", got, reason)
	}
}

// A penalty that is about to be made meets a tenant that is forgiven at that moment.
func TestAPenaltyIsNotMadeForATenantThatWasForgivenMeanwhile(t *testing.T) {
	w := newWorld(t)
	w.past("acme", repeat(8, scraped)...)
	w.detect(Shadow)
	p := penalized{Tenant: "acme", State: State{Step: Tenth}, Reason: "x", Now: w.now()}
	_, err := p.reconcile(t.Context(), w.keeper)
	require.NoError(t, err)
	assert.Equal(t, "", w.penalties("acme"), "penalties for a step that it is not on")
}

// One lowered limit must not ban a fifth of all customers.
func TestNoTenantClimbsWhileManyAreFlaggedAtOnce(t *testing.T) {
	w := newWorld(t)
	for i := range 2 * massFlagged {
		w.past(fmt.Sprint("tenant-", i), repeat(8, scraped)...)
	}
	w.detect(Enforce)
	assert.Equal(t, "0", w.text(`SELECT count(*)::text FROM rate_limiter.abuse_tenants WHERE step <> 'none'`),
		"tenants are on a step")
	assert.NotZero(t, strings.Count(w.log.String(), "flags so many tenants at once"), "the log has %s", w.log.String())
	w.past("acme", repeat(8, scraped)...) // alone: the others have sent nothing since
	for i := range 2 * massFlagged {
		w.past(fmt.Sprint("tenant-", i), repeat(8, minute{admitted: 10})...)
	}
	w.detect(Enforce)
	assert.Equal(t, "half", w.step("acme"), "one that attacks")
}

// The cause of a flag is the same for all, but not all have the least number of denials in the same minute.
func TestNoTenantClimbsWhileManyAreFlaggedThatBecameSuspectInDifferentMinutes(t *testing.T) {
	const minutes, group = 12, massFlagged * 3 / 5 // too few for themselves
	w, calm := newWorld(t), minute{admitted: 10}
	for i := range 5 * group {
		begin := minutes
		if i < 2*group {
			begin = 2 + i%2
		}
		w.past(fmt.Sprint("tenant-", i), append(repeat(begin, calm), repeat(minutes-begin, scraped)...)...)
	}
	w.detect(Enforce)
	assert.Equal(t, "0", w.text(`SELECT count(*)::text FROM rate_limiter.abuse_tenants WHERE step IN ('half', 'tenth')`),
		"tenants have a penalty")
}

// Another program may have a penalty of its own, of which there can be one for a tenant.
func TestAPenaltyThatCannotBeMadeKeepsNoOtherTenantFromOne(t *testing.T) {
	w := newWorld(t)
	w.exec(`INSERT INTO rate_limiter.overrides (kind, tenant, factor, reason, author, source, expires_at)
		VALUES ('multiplier', 'acme', 300, 'by another detector', 'waf', 'detector', now() + interval '1 day')`)
	for _, name := range []string{"acme", "beta"} {
		w.past(name, repeat(8, scraped)...)
	}
	d := New(Options{Mode: Enforce, DeniedShare: DefaultDeniedShare, Log: slog.New(slog.NewTextHandler(&w.log, nil))})
	require.NoError(t, d.Run(t.Context(), w.keeper))
	assert.Equal(t, "multiplier 500 by abuse detector", w.penalties("beta"),
		"on %s the penalties of another tenant", w.step("beta"))
	assert.Equal(t, "multiplier 300 by waf", w.penalties("acme"), "the penalties of the tenant")
	assert.Contains(t, w.log.String(), `penalty of \"acme\"`, "the log")
}

func TestANewLeaderScoresEveryMinuteOnce(t *testing.T) {
	w := newWorld(t)
	w.past("acme", repeat(6, scraped)...)
	w.detect(Shadow)
	before := w.text(`SELECT state::text || scored_at FROM rate_limiter.abuse_tenants`)
	require.Equal(t, "warn", w.step("acme"))
	w.detect(Shadow)
	// A minute may have passed meanwhile, in which the tenant has sent nothing.
	if after := w.text(`SELECT state::text || scored_at FROM rate_limiter.abuse_tenants`); after != before &&
		w.text(`SELECT (scored_until > date_trunc('minute', clock_timestamp() - interval '80 seconds'))::text
			FROM rate_limiter.abuse_state`) != "true" {
		t.Errorf("a second run changes %s to %s", before, after)
	}
}

// Otherwise a penalty would be renewed until the time has come that was scored before.
func TestAPenaltyEndsAlsoIfTheClockIsSetBackByADay(t *testing.T) {
	w := newWorld(t)
	w.past("acme", repeat(8, scraped)...)
	w.detect(Enforce)
	require.Equal(t, "half", w.step("acme"))
	w.past("acme", repeat(2, minute{admitted: 10})...)
	w.exec(`UPDATE rate_limiter.abuse_state SET scored_until = now() + interval '1 day'`)
	w.exec(`UPDATE rate_limiter.abuse_tenants SET state = state || jsonb_build_object(
		'since', clock_timestamp() + interval '1 day', 'flagged_at', clock_timestamp() + interval '1 day')`)
	w.detect(Enforce)
	const isPast = `SELECT ((state ->> 'since')::timestamptz < clock_timestamp())::text FROM rate_limiter.abuse_tenants`
	assert.Equal(t, "true", w.text(isPast), "it is that its step began before now")
}

func TestDenialsByAnOutageAndByLimitsOfOthersFlagNothing(t *testing.T) {
	w := newWorld(t)
	w.past("acme", repeat(20, minute{admitted: 10, unavailable: 990})...)
	w.detect(Enforce)
	assert.Equal(t, "none", w.step("acme"), "a tenant that fail mode closed denied")
}

// What a keeper's login can do is bounded, also if it is stolen.
func TestPenaltiesAreBoundedByTheDatabase(t *testing.T) {
	w := newWorld(t)
	for sql, want := range map[string]string{
		`SELECT rate_limiter.penalize('acme', 500, now() + interval '2 hours', 'x')`:  "an hour at most",
		`SELECT rate_limiter.penalize('acme', 1000, now() + interval '1 hour', 'x')`:  "0 to 999",
		`SELECT rate_limiter.penalize('', 500, now() + interval '1 hour', 'x')`:       "1 to 128 bytes",
		`SELECT rate_limiter.penalize('acme', 500, NULL, 'x')`:                        "an hour at most",
		`INSERT INTO rate_limiter.overrides (kind, tenant) VALUES ('exempt', 'acme')`: "permission denied",
	} {
		if _, err := w.keeper.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", sql, err, want)
		}
	}
}

func TestStatesOfTenantsThatSendNothingAreDropped(t *testing.T) {
	w := newWorld(t)
	w.past("acme", repeat(3, minute{admitted: 10})...)
	w.detect(Shadow)
	require.Equal(t, "none", w.step("acme"))
	w.exec(`UPDATE rate_limiter.abuse_tenants SET scored_at = now() - interval '8 days'`)
	w.detect(Shadow)
	assert.Equal(t, "new", w.step("acme"), "after a week")
}
