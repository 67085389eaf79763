package cli

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/logtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// busyDatabase has usage of two tenants in the last minute before noon, a recent denial and no nodes.
func busyDatabase(t *testing.T) (dsn string) {
	t.Helper()
	dsn = pgtest.Shared(t).Database(t)
	pool := pgtest.Pool(t, dsn)
	_, err := pool.Exec(t.Context(), `
		CREATE TABLE rate_limiter.usage_minutes_2099 PARTITION OF rate_limiter.usage_minutes
			FOR VALUES FROM ('2099-01-01 00:00:00+00') TO ('2099-01-02 00:00:00+00');
		INSERT INTO rate_limiter.usage_names (name) VALUES (''), ('acme'), ('globex');
		INSERT INTO rate_limiter.usage_minutes (at, tenant, endpoint, policy, admitted, soft, denied, shadow_denied, cost)
		SELECT '2099-01-01 11:59:00+00', t.id, e.id, e.id, admitted, 0, denied, 2, 0
		FROM (VALUES ('acme', 450, 150), ('globex', 500, 0)) v (tenant, admitted, denied)
		JOIN rate_limiter.usage_names t ON t.name = v.tenant JOIN rate_limiter.usage_names e ON e.name = ''`)
	require.NoError(t, err)
	reportDenials(t, pool, "acme")
	_, err = pool.Exec(t.Context(), `UPDATE rate_limiter.recent_denials SET at = '2099-01-01 11:59:30+00'`)
	require.NoError(t, err)
	return dsn
}

func TestTopShowsTenantsDenialsAndNodes(t *testing.T) {
	dsn := busyDatabase(t)
	x := &terminal{t: t, env: map[string]string{databaseVariable: dsn}}
	text := x.must("top", "--once")
	for _, want := range []string{
		"from              2099-01-01T11:55:00Z\n",
		"globex  500       0     0       2              0     0     500       1.7                  0                  0\n" +
			"acme    450       0     150     2              0     0     600       2                    0.5                25\n",
		"near limits note  --config names",
		"POST /a   daily   100    1d", "live nodes  0",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("top shows\n%s\nwant %q in it", text, want)
		}
	}
	var v topView
	require.NoError(t, json.Unmarshal([]byte(x.must("top", "--once", "--by", "denied", "-o", "json")), &v))
	if len(v.Tenants) != 1 || v.Tenants[0].Tenant != "acme" || len(v.Denials) != 1 {
		t.Errorf("by denied it shows %+v", v)
	}
}

func TestTopListsLimitsNearlyUsedByAConfig(t *testing.T) {
	x, deck := onNearLimits(t)
	var v topView
	output := x.must("top", "--once", "--last", "10m", "--config", deck, "-o", "json")
	if err := json.Unmarshal([]byte(output), &v); err != nil || len(v.NearLimits) != 3 || v.NearNote != "" {
		t.Errorf("it shows %s (%v)", output, err)
	}
}

func TestTopRefreshesUntilItIsEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out logtest.Text
	ended := make(chan int, 1)
	o := operator{
		getenv: func(string) string { return "" }, now: func() time.Time { return noon },
		login: func() string { return "ann@laptop" }, stdout: screen{to: &out}, stderr: screen{to: &out},
	}
	go func() {
		ended <- o.run(ctx, []string{"top", "--every", "1s", "--database", busyDatabase(t), "-o", "yaml"})
	}()
	await.That(t, "the second refresh is shown", func() bool { return strings.Count(out.String(), "---\n") >= 2 })
	cancel()
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d: %s", code, out.String())
	}
}

// topOf returns a monitor of an API that answers by a function.
func topOf(x *terminal, m monitor) *monitor {
	m.call = newCall(&operator{stdout: screen{to: &x.output}, now: func() time.Time { return noon }}, topCommand)
	m.config, m.every = new(configFlags), time.Hour
	return &m
}

func served(answer http.HandlerFunc) *answers.Client {
	return &answers.Client{Transport: answers.Served(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer(w, r)
	})}
}

func TestTopWithoutAPlanOfTheServerSaysWhyNoLimitIsNearlyUsed(t *testing.T) {
	x := &terminal{t: t}
	m := topOf(x, monitor{once: true})
	m.door.server = "https://limits.example.com"
	err := m.run(t.Context(), served(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == nearLimitPath {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"status":503,"detail":"this process has no plugin config"}`))
			return
		}
		_, _ = w.Write([]byte(`{}`))
	}))
	const want = "near limits note  this process has no plugin config\n"
	if text := x.output.String(); err != nil || !strings.Contains(text, want) {
		t.Errorf("%v: %s", err, text)
	}
}

func TestTopEndsCleanlyWhenItIsInterrupted(t *testing.T) {
	for _, once := range []bool{true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		m := topOf(&terminal{t: t}, monitor{once: once})
		err := m.run(ctx, served(func(w http.ResponseWriter, _ *http.Request) {
			cancel()
			_, _ = w.Write([]byte(`{}`))
		}))
		if (err != nil) != once {
			t.Errorf("once: %t; the end is %v", once, err)
		}
	}
}

func TestTopWritesNothingThatATerminalObeys(t *testing.T) {
	const hostile = "\x1b[2J\x1b]0;owned\x07\u009b31m\u202eevil\x7f\n|"
	v := topView{
		Tenants:    []topTenant{{OrgRanking: rows.OrgRanking{Tenant: hostile}}},
		NearLimits: []answers.NearLimit{{Org: hostile, Policy: hostile, Endpoint: hostile}},
		Denials:    []answers.Denial{{Org: hostile, Policy: hostile, Endpoint: hostile, User: hostile}},
		Fleet:      shownFleet{Nodes: []shownNode{{Node: rows.Node{Node: hostile, Faults: []byte(`[]`)}}}},
	}
	for _, format := range []string{formatTable, formatJSON, formatYAML} {
		x := &terminal{t: t}
		m := topOf(x, monitor{})
		m.format = format
		require.NoError(t, m.show(&v, 0))
		obeyed := func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }
		if i := strings.IndexFunc(x.output.String(), obeyed); i >= 0 {
			t.Errorf("%s: at %d there is %q", format, i, x.output.String()[i:][:20])
		}
	}
}

func TestTopOverwritesOnATerminalAndAppendsElsewhere(t *testing.T) {
	for before, between := range map[string]string{overwrite: overwrite, "": "\n"} {
		x := &terminal{t: t}
		m := topOf(x, monitor{})
		m.stdout.before = before
		require.NoError(t, m.show(new(topView), 0))
		first := x.output.String()
		require.NoError(t, m.show(new(topView), 1))
		if want := first + between + strings.TrimPrefix(first, before); x.output.String() != want {
			t.Errorf("it wrote %q, want %q", x.output.String(), want)
		}
	}
}
