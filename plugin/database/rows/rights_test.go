package rows_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// work is a task of a role.
type work struct {
	what string
	do   func(ctx context.Context, s *rows.DB) error
}

// only and only2 return the error of a call with more results.
func only(_ any, err error) error     { return err }
func only2(_, _ any, err error) error { return err }

// later returns a ban that expires after a time.
func later(after time.Duration) rows.Override {
	return row(schema.Override{Kind: "ban", Tenant: "acme", ExpiresAt: time.Now().Add(after)})
}

// writing lists the tasks of operators and of the REST API.
var writing = []work{
	{"put a tier", func(ctx context.Context, s *rows.DB) error {
		return only2(s.PutTier(ctx, ann, rows.Tier{Name: "gold"}))
	}},
	{"set a tenant", func(ctx context.Context, s *rows.DB) error {
		return only2(s.SetTenant(ctx, ann, ofTier("gold", 0)))
	}},
	{"put a policy", func(ctx context.Context, s *rows.DB) error {
		p := daily()
		p.Endpoint = "GET /records/{id}"
		return only2(s.PutPolicy(ctx, ann, p))
	}},
	{"apply a set", func(ctx context.Context, s *rows.DB) error {
		return only2(s.Apply(ctx, ann, rows.Set{Policies: []rows.Policy{daily()}}))
	}},
	{"add and end an override", func(ctx context.Context, s *rows.DB) error {
		o, _, err := s.AddOverride(ctx, ann, later(time.Hour))
		if err == nil {
			_, err = rows.Delete[rows.Override](ctx, s, ann, o.ID, rows.AnyRevision)
		}
		return err
	}},
	{"record an action", func(ctx context.Context, s *rows.DB) error {
		return s.Do(ctx, ann, rows.Action{Operation: "reset", Key: "buckets", Tenant: "acme"}, nil, done)
	}},
	{"forget a node", func(ctx context.Context, s *rows.DB) error {
		_, err := s.ForgetNode(ctx, ann, "edge-1")
		if errors.As(err, new(*rows.NotFoundError)) {
			return nil // it has the right, and there is no such node
		}
		return err
	}},
	{"list policies by endpoint", func(ctx context.Context, s *rows.DB) error {
		return only(s.Policies(ctx, rows.PolicyFilter{Endpoint: "GET /records/{id}"}))
	}},
	{"read the audit", func(ctx context.Context, s *rows.DB) error {
		return only(s.Audit(ctx, rows.AuditFilter{}))
	}},
	{"read the fleet", func(ctx context.Context, s *rows.DB) error { return only(s.Fleet(ctx, time.Minute)) }},
	{"read the history", func(ctx context.Context, s *rows.DB) error {
		return only(s.EndedOverrides(ctx, rows.OverrideFilter{}))
	}},
	{"list tokens", func(ctx context.Context, s *rows.DB) error {
		return only(s.Tokens(ctx, rows.TokenFilter{}))
	}},
}

var works = map[string][]work{
	pgtest.Operator: append(writing[:len(writing):len(writing)],
		work{"create and revoke a token", func(ctx context.Context, s *rows.DB) error {
			_, _, err := s.CreateToken(ctx, ann, rows.NewToken{Name: "ci", Role: rows.RoleAdmin})
			if err == nil {
				_, err = s.RevokeToken(ctx, ann, "ci")
			}
			return err
		}},
	),
	pgtest.ServerRole: append(writing[:len(writing):len(writing)],
		work{"write once", func(ctx context.Context, s *rows.DB) error {
			p := daily()
			p.Limit.Limit = 7
			return only2(s.PutPolicy(ctx, once("k", "a request"), p))
		}},
		work{"act once", func(ctx context.Context, s *rows.DB) error {
			return s.Do(ctx, once("a", "a request"), rows.Action{Operation: "reset"}, new(string), done)
		}},
		work{"record the use of a token", func(ctx context.Context, s *rows.DB) error {
			return s.Used(ctx, map[int64]time.Duration{1: time.Second})
		}},
	),
	pgtest.Keeper: {
		{"tidy", func(ctx context.Context, s *rows.DB) error { return only(tidy(ctx, s, rows.Retention{})) }},
	},
}

func TestTheGrantsOfTheReadmeSufficeForEachRole(t *testing.T) {
	server := pgtest.Granted(t)
	root := rows.New(pgtest.Pool(t, server.DSN("ratelimit")))
	if _, _, err := root.CreateToken(t.Context(), ann, rows.NewToken{
		Name: "first", Role: rows.RoleViewer,
	}); err != nil {
		t.Fatal(err)
	}
	for role, list := range works {
		s := rows.New(pgtest.Pool(t, server.RoleDSN(role)))
		for _, w := range list {
			assert.NoError(t, w.do(t.Context(), s), "%s: %s", role, w.what)
		}
	}
	for _, role := range []string{pgtest.Node, pgtest.ServerRole} {
		pool := pgtest.Pool(t, server.RoleDSN(role))
		report(t, pool, role, 1, 0)
		_, err := policysync.RemoveReport(t.Context(), pool, role)
		assert.NoError(t, err, "%s", role)
	}
}

func TestTheRightsOfAKeeperSufficeToTidy(t *testing.T) {
	server := pgtest.Granted(t)
	pool := pgtest.Pool(t, server.DSN("ratelimit"))
	root := rows.New(pool)
	o, _, err := root.AddOverride(t.Context(), ann, later(time.Hour))
	require.NoError(t, err)
	age(t, pool, o.ID, 2*time.Hour)
	put(t, root, daily())
	report(t, pool, "n1", 1, time.Second)
	_, _, err = root.PutPolicy(t.Context(), once("k", "a request"), daily())
	require.NoError(t, err)
	pgtest.Exec(t, pool, `UPDATE rate_limiter.answers SET at = at - interval '2 days'`)
	keeper := rows.New(pgtest.Pool(t, server.RoleDSN(pgtest.Keeper)))
	done, err := tidy(t.Context(), keeper, rows.Retention{})
	if err != nil || !done.Leader || done.Overrides != 1 || done.Changes == 0 || done.Nodes != 1 || done.Keys != 1 {
		t.Errorf("the keeper has done %+v (%v), want one override, the changes, one node and one key", done, err)
	}
	entries, err := root.Audit(t.Context(), rows.AuditFilter{Actor: "retention"})
	if err != nil || len(entries) != 1 || entries[0].Login != pgtest.Keeper {
		t.Errorf("the audit has %+v (%v), want the end of the override by the login keeper", entries, err)
	}
}
