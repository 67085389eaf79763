package rows_test

import (
	"crypto/sha256"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// once returns a change by ann with an Idempotency for a key and a request.
func once(key, request string) rows.Change {
	c := ann
	c.Idempotency = &rows.Idempotency{Token: "ci", Key: key, Request: sha256.Sum256([]byte(request))}
	return c
}

// versions returns the version and the number of audit entries.
func versions(t *testing.T, s *rows.DB) (version int64, entries int) {
	t.Helper()
	fleet, err := s.Fleet(t.Context(), 0)
	require.NoError(t, err)
	list, err := s.Audit(t.Context(), rows.AuditFilter{Max: 10_000})
	require.NoError(t, err)
	return fleet.Version, len(list)
}

func TestWriteSentAgainWritesNothingAndReturnsTheSame(t *testing.T) {
	s, _ := open(t)
	add := func(c rows.Change) (any, int64, error) { return s.AddOverride(t.Context(), c, ban()) }
	for name, write := range map[string]func(rows.Change) (any, int64, error){
		"policy":   func(c rows.Change) (any, int64, error) { return s.PutPolicy(t.Context(), c, daily()) },
		"override": add,
		"tenant": func(c rows.Change) (any, int64, error) {
			return s.SetTenant(t.Context(), c, rows.Tenant{Tenant: schema.Tenant{ID: "acme"}})
		},
		"tier": func(c rows.Change) (any, int64, error) {
			return s.PutTier(t.Context(), c, rows.Tier{Name: "gold"})
		},
		"apply": func(c rows.Change) (any, int64, error) {
			return s.Apply(t.Context(), c, rows.Set{Namespace: "eu", Policies: []rows.Policy{named("a")[0]}})
		},
	} {
		first := once(name, "a request")
		row, version, err := write(first)
		if err != nil || first.Idempotency.Replayed {
			t.Fatalf("%s: %v, replayed %v", name, err, first.Idempotency.Replayed)
		}
		before, entries := versions(t, s)
		second := once(name, "a request")
		again, sameVersion, err := write(second)
		if err != nil || !second.Idempotency.Replayed || sameVersion != version || !same(t, row, again) {
			t.Errorf("%s: again it returns %+v in version %d (%v), want %+v in %d", name, again, sameVersion, err, row, version)
		}
		if after, now := versions(t, s); after != before || now != entries {
			t.Errorf("%s: again it makes version %d and %d audit entries, there were %d and %d", name,
				after, now, before, entries)
		}
	}
	_, _, err := add(once("another key", "a request"))
	wantConflict(t, "the same under another key", err)
}

// same reports whether two results have the same JSON.
func same(t *testing.T, a, b any) bool {
	t.Helper()
	one, err := json.Marshal(a)
	require.NoError(t, err)
	other, err := json.Marshal(b)
	require.NoError(t, err)
	return string(one) == string(other)
}

func TestWriteThatFailedMayBeTriedAgainUnderItsKey(t *testing.T) {
	s, _ := open(t)
	bad := daily()
	bad.Limit.Limit = 0
	_, _, err := s.PutPolicy(t.Context(), once("k", "one"), bad)
	wantInvalid(t, "a limit of 0", err, "limit")
	c := once("k", "two")
	if _, _, err := s.PutPolicy(t.Context(), c, daily()); err != nil || c.Idempotency.Replayed {
		t.Errorf("the corrected write: %v, replayed %v", err, c.Idempotency.Replayed)
	}
}

func TestInvalidKeysAreErrorsAndWriteNothing(t *testing.T) {
	s, _ := open(t)
	for _, key := range []string{"", "a\nb", "ä", "a\x00b", "\xff", strings.Repeat("x", 129)} {
		_, _, err := s.PutPolicy(t.Context(), once(key, "one"), daily())
		assert.ErrorAs(t, err, new(*rows.InvalidError))
	}
	assert.Equal(t, "", names(t, s))
}

func TestOfManyAtOnceUnderOneKeyOneWritesAndAllReturnTheSame(t *testing.T) {
	const senders = 20
	s, _ := open(t)
	list := make([]rows.Override, senders)
	replayed := make([]bool, senders)
	var all errgroup.Group
	for i := range senders {
		all.Go(func() (err error) {
			c := once("k", "one")
			list[i], _, err = s.AddOverride(t.Context(), c, ban())
			replayed[i] = c.Idempotency.Replayed
			return err
		})
	}
	require.NoError(t, all.Wait())
	writers := 0
	for i := range list {
		if !replayed[i] {
			writers++
		}
		if list[i].ID != list[0].ID || !list[i].CreatedAt.Equal(list[0].CreatedAt) {
			t.Errorf("the answer to sender %d is %+v, to sender 0 %+v", i, list[i], list[0])
		}
	}
	if version, entries := versions(t, s); writers != 1 || version != 1 || entries != 1 {
		t.Errorf("%d write, in %d versions with %d audit entries; want one", writers, version, entries)
	}
}

func TestKeysAreForgottenAfterADay(t *testing.T) {
	s, pool := open(t)
	for i, stale := range []bool{false, true} {
		key := []string{"young", "old"}[i]
		_, _, err := s.PutPolicy(t.Context(), once(key, "one"), daily())
		require.NoError(t, err)
		if stale {
			pgtest.Exec(t, pool, `UPDATE rate_limiter.answers SET at = at - $2::interval WHERE key = $1`, key,
				rows.KeysKept)
		}
	}
	c := once("old", "another")
	if _, _, err := s.PutPolicy(t.Context(), c, named("other")[0]); err != nil || c.Idempotency.Replayed {
		t.Errorf("a key of yesterday: %v, replayed %v", err, c.Idempotency.Replayed)
	}
	pgtest.Exec(t, pool, `UPDATE rate_limiter.answers SET at = at - $1::interval WHERE key = 'old'`,
		rows.KeysKept)
	done, err := tidy(t.Context(), s, rows.Retention{Overrides: time.Hour, Changes: time.Hour, Nodes: time.Hour})
	if want := (rows.Tidied{Leader: true, Keys: 1}); err != nil || done != want {
		t.Errorf("tidied %+v (%v), want %+v", done, err, want)
	}
}
