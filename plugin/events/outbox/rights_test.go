package outbox

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/migrations"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events"
)

func TestAKeeperAddsReadsAndTidies(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Granted(t).RoleDSN(pgtest.Keeper))
	addAll(t, pool, "a", "b")
	assert.Equal(t, "a b", consume(t, pool))
	_, err := tidy(t.Context(), pool, 0, 1)
	assert.NoError(t, err)
	_, err = Lags(t.Context(), pool)
	assert.NoError(t, err)
}

// change is the data of an event of a change.
type change struct {
	Version                             int64 `json:"policy_version"`
	Kind, Operation, Key, Actor, Reason string
	Org                                 string `json:"org"`
	Before, After                       map[string]any
}

func TestEachChangeOfAPolicyIsAnEventInItsTransaction(t *testing.T) {
	s := pgtest.Granted(t)
	operator := pgtest.Pool(t, s.RoleDSN(pgtest.Operator))
	keeper := pgtest.Pool(t, s.RoleDSN(pgtest.Keeper))
	tx := begin(t, operator)
	for _, statement := range []string{
		`SET LOCAL rate_limiter.actor = 'ann'`, `SET LOCAL rate_limiter.reason = 'launch'`,
		`INSERT INTO rate_limiter.tiers (name) VALUES ('gold')`,
		`INSERT INTO rate_limiter.tenants (id, tier) VALUES ('acme', 'gold')`,
		`INSERT INTO rate_limiter.policies (name, tenant, scope, "limit", window_size)
			VALUES ('daily', 'acme', 'tenant', 5, 60)`,
		`UPDATE rate_limiter.policies SET "limit" = 9`,
		`INSERT INTO rate_limiter.overrides (kind, tenant, reason, author, permanent)
			VALUES ('exempt', 'acme', 'partner', 'ann', true)`,
		`DELETE FROM rate_limiter.overrides`,
		`INSERT INTO rate_limiter.prices (model, prompt, completion) VALUES ('gpt-4o*', 2500000, 10000000)`,
		// What is no policy is no event.
		`INSERT INTO rate_limiter.tokens (name, hash, role) VALUES ('ci', sha256('secret'), 'admin')`,
		`SELECT rate_limiter.record_action('reset', 'buckets', 'acme', NULL)`,
	} {
		_, err := tx.Exec(t.Context(), statement)
		require.NoError(t, err, "%s", statement)
	}
	if all, err := Read(t.Context(), keeper, consumer, 10); err != nil || len(all) != 0 {
		t.Fatalf("before the commit there are %v (%v)", all, err)
	}
	commit(t, tx)
	all, err := Read(t.Context(), keeper, consumer, 10)
	require.NoError(t, err)
	want := []string{
		"tier insert  ", "tenant insert acme ", "policy insert acme 5", "policy update acme 9", "override insert acme ",
		"override delete acme ", "price insert  ",
	}
	require.Equal(t, len(want), len(all), "there are events: %v", all)
	for i, e := range all {
		checkChange(t, e, want[i])
	}
}

// checkChange checks the event of a change: its kind, operation, tenant and limit.
func checkChange(t *testing.T, e Entry, want string) {
	t.Helper()
	if _, err := e.JSON(); err != nil || e.Type != events.PolicyUpdated || e.Source != events.Control {
		t.Errorf("%+v is no CloudEvent of a change: %v", e, err)
	}
	var c change
	require.NoError(t, json.Unmarshal(e.Data, &c))
	published, err := jsonschema.NewCompiler().Compile("../../../schema/policy_updated.schema.json")
	require.NoError(t, err)
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(e.Data))
	if err == nil {
		err = published.Validate(value)
	}
	assert.NoError(t, err, "the event of %q", want)
	limit := ""
	if c.Kind == "policy" {
		text, err := json.Marshal(c.After["limit"])
		require.NoError(t, err)
		limit = string(text)
	}
	assert.Equal(t, want, strings.Join([]string{c.Kind, c.Operation, c.Org, limit}, " "), "the event")
	if c.Org != e.Tenant || c.Actor != "ann" || c.Reason != "launch" || c.Version != 1 || c.Key == "" ||
		(c.Before == nil) != (c.Operation == "insert") || (c.After == nil) != (c.Operation == "delete") {
		t.Errorf("the event of %q has %+v", want, c)
	}
}

func TestAStandbyReturnsAnErrorWithAdvice(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	addAll(t, pool, "a")
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	pgtest.Exec(t, conn, `SET default_transaction_read_only = on`)
	for name, do := range map[string]func() error{
		"read": func() error { _, err := Read(t.Context(), conn.Conn(), consumer, 1); return err },
		"tidy": func() error { _, err := Tidy(t.Context(), conn.Conn()); return err },
		"add": func() error {
			return pgx.BeginFunc(t.Context(), conn.Conn(), func(tx pgx.Tx) error {
				return Add(t.Context(), tx, notice("b"))
			})
		},
	} {
		if err := do(); err == nil || !strings.Contains(migrations.Advice(err), "read-only") {
			t.Errorf("%s: %v, want an error with advice", name, err)
		}
	}
}
