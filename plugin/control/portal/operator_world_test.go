package portal

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// realWorld is a portal on a real API with a database of its own.
type realWorld struct {
	*world
	store   *rows.DB
	pool    *pgxpool.Pool
	decider *admit.Decider
	real    *api.Server
}

// overAPI starts a portal on the API, where acme has a daily limit of 1,000,000 and one of 20 writes a minute.
func overAPI(t *testing.T) *realWorld {
	t.Helper()
	return overDatabase(t, pgtest.Pool(t, pgtest.Shared(t).Database(t)), policy.Rows{}, freeTier)
}

// setting is what a realWorld has beside its database.
type setting struct {
	config schema.Config
	now    time.Time                       // of the buckets
	edit   func(o *Options, r *api.Server) // nil: the tokens are those of a ring
}

var freeTier = setting{
	config: schema.Config{
		DefaultTier: "free", OnMissingUser: "skip", TenantFrom: []string{"consumer.custom_id"},
		Tiers: []schema.Tier{{Name: "free", Limits: []schema.Limit{
			{Name: "daily", Scope: "tenant", Limit: 1_000_000, WindowSize: 86400, Algorithm: "fixed_window"},
			{Name: "writes", Scope: "tenant", Endpoint: "POST /records", Limit: 20, WindowSize: 60},
		}}},
	},
	now: time.Unix(1_900_000_000, 0),
}

// overDatabase is overAPI on a database, whose rows are in force.
func overDatabase(t testing.TB, pool *pgxpool.Pool, list policy.Rows, s setting) *realWorld {
	t.Helper()
	w := &realWorld{store: rows.New(pool), pool: pool}
	config := s.config.WithDefaults()
	now := func() limit.Micros { return limit.Micros(s.now.UnixMicro()) }
	buckets := memory.New(memory.Options{Now: now})
	w.decider = &admit.Decider{Now: now, Buckets: buckets, Renderer: response.New(config, nil)}
	plan, err := resolve.ForCallers(config)
	require.NoError(t, err)
	snapshot, faults := policy.NewSnapshot(list, nil)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	w.decider.Policies.Store(plan.With(snapshot))
	w.real, err = api.New(api.Options{
		Rows: w.store, Tokens: storedTokens{w.store}, Log: slog.New(slog.DiscardHandler), Decider: w.decider,
		Buckets: buckets,
	})
	require.NoError(t, err)
	w.world = open(t, func(o *Options) {
		if o.API = (joined{w.real, o.API.(joined).ring}); s.edit != nil {
			s.edit(o, w.real)
		}
	})
	return w
}

// storedTokens authenticates by the tokens of a database.
type storedTokens struct{ store *rows.DB }

// Authenticate implements api.Authenticator.
func (t storedTokens) Authenticate(ctx context.Context, secret string) (api.Caller, error) {
	all, err := t.store.Secrets(ctx)
	if err != nil {
		return api.Caller{}, err
	}
	found, err := all.Token(secret)
	if errors.As(err, new(*rows.TokenError)) {
		err = api.ErrUnknownToken
	}
	return api.Caller{Token: found.Name, Role: api.Role(found.Role), Org: found.Org}, err
}

// exec runs a statement.
func (w *realWorld) exec(sql string, args ...any) {
	w.Helper()
	pgtest.Exec(w, w.pool, sql, args...)
}

// write sends a write to the API as an admin.
func (w *realWorld) write(method, path, body string) {
	w.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	a := httptest.NewRecorder()
	w.real.ServeAs(a, r, api.Caller{Token: "ann", Role: api.Admin})
	if a.Code > 299 {
		w.Fatalf("%s %s: %d %s", method, path, a.Code, a.Body)
	}
}
