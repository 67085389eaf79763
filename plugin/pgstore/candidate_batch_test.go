package pgstore_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

// statementCounter counts the statements of a pool.
type statementCounter struct{ n atomic.Int64 }

// TraceQueryStart implements pgx.QueryTracer.
func (c *statementCounter) TraceQueryStart(
	ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData,
) context.Context {
	c.n.Add(1)
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (c *statementCounter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// All writes wait for one another, so a put of many policies must not take a statement for each.
func TestTheStatementsOfAPutIntoACandidateDoNotGrowWithItsPolicies(t *testing.T) {
	config, err := pgxpool.ParseConfig(pgtest.Shared(t).Database(t))
	if err != nil {
		t.Fatal(err)
	}
	counter := new(statementCounter)
	config.ConnConfig.Tracer = counter
	config.MaxConns = 2
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := pgstore.New(pool)
	candidate(t, s, july, daily())
	statements := func(policies int, limit int64) int64 {
		list := make([]pgstore.Policy, policies)
		for i := range list {
			list[i] = limited(limit)
			list[i].Tier, list[i].Tenant = "", fmt.Sprint("tenant-", i)
		}
		before := counter.n.Load()
		if _, err := s.ReviewCandidate(t.Context(), nil, july, list...); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.PutCandidatePolicies(t.Context(), ann, july, list...); err != nil {
			t.Fatal(err)
		}
		return counter.n.Load() - before
	}
	statements(3, 1) // connections prepare
	few, many := statements(3, 2), statements(300, 3)
	if again := statements(300, 4); many > few+2 || again > few+2 { // a connection may prepare a statement more
		t.Errorf("a put of 3 policies takes %d statements, one of 300 %d, and again %d", few, many, again)
	}
	row, err := s.Candidate(t.Context(), july)
	if err != nil || row.Policies != 301 {
		t.Errorf("the candidate changes %d policies (%v), want 301", row.Policies, err)
	}
}
