package migrations_test

import (
	"fmt"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
)

func TestACandidateRecordsItsBaseAndWhoHasMadeAndEndedIt(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	insertGood(t, pool, "policies", "tokens") // a token takes no version
	as(t, pool, "ann", "try it", `INSERT INTO rate_limiter.candidates (name, created_by, base_version)
		VALUES ('july', 'eve', 7)`)
	as(t, pool, "bob", "good", `UPDATE rate_limiter.candidates SET state = 'promoted', ended_by = 'eve'`)
	var got string
	if err := pool.QueryRow(t.Context(), `SELECT concat_ws(' ', base_version, base_audit, created_by, reason, ended_by,
		end_reason, ended_at > created_at) FROM rate_limiter.candidates`).Scan(&got); err != nil {
		t.Fatal(err)
	}
	if want := "1 2 ann try it bob good t"; got != want {
		t.Errorf("the candidate is %q, want %q", got, want)
	}
	all := audit(t, pool)
	if len(all) != 4 || all[2].Kind != "candidate" || all[2].Key != "july" || all[2].Version != 2 ||
		all[3].Before["state"] != "open" || all[3].After["state"] != "promoted" || all[3].Actor != "bob" {
		t.Errorf("the audit has %+v", all)
	}
}

func TestRebasingACandidateTakesTheCurrentVersionWhateverIsWritten(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	insertGood(t, pool, "candidates", "policies")
	exec(t, pool, `UPDATE rate_limiter.candidates SET base_version = 100`)
	var base int64
	if err := pool.QueryRow(t.Context(), `SELECT base_version FROM rate_limiter.candidates`).Scan(&base); err != nil ||
		base != 2 {
		t.Errorf("the base is version %d (%v), want 2", base, err)
	}
}

func TestEachChangeOfACandidateIsInTheTableOfChanges(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	insertGood(t, pool, "candidates", "candidate_policies", "candidate_tenants")
	exec(t, pool, `UPDATE rate_limiter.candidates SET percent = 5`)
	exec(t, pool, `UPDATE rate_limiter.candidate_policies SET body = NULL`)
	exec(t, pool, `DELETE FROM rate_limiter.candidate_tenants`)
	var got string
	if err := pool.QueryRow(t.Context(), `SELECT string_agg(concat_ws(' ', kind, operation, key, tenant), ', '
		ORDER BY version, number) FROM rate_limiter.changes`).Scan(&got); err != nil {
		t.Fatal(err)
	}
	want := "candidate insert july , candidate_policy insert 1 , candidate_tenant insert acme acme, " +
		"candidate update july , candidate_policy update 1 , candidate_tenant delete acme acme"
	if got != want {
		t.Errorf("the changes are %q, want %q", got, want)
	}
}

func TestACandidateThatHasEndedStaysAsItIs(t *testing.T) {
	for _, state := range []string{"promoted", "dropped"} {
		pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
		insertGood(t, pool, "candidates", "candidate_policies", "candidate_tenants")
		exec(t, pool, fmt.Sprintf(`UPDATE rate_limiter.candidates SET state = '%s'`, state))
		for _, statement := range []string{
			`UPDATE rate_limiter.candidates SET percent = 5`,
			`UPDATE rate_limiter.candidates SET state = 'open', ended_at = NULL`,
			`UPDATE rate_limiter.candidate_policies SET body = NULL`,
			`DELETE FROM rate_limiter.candidate_policies`,
			`DELETE FROM rate_limiter.candidate_tenants`,
			`INSERT INTO rate_limiter.candidate_tenants (candidate, tenant) VALUES ('july', 'globex')`,
		} {
			_, err := pool.Exec(t.Context(), statement)
			if got := violates(t, err); got != "candidates_ended" {
				t.Errorf("%s of a candidate that is %s violates %q", statement, state, got)
			}
		}
		if _, err := pool.Exec(t.Context(), `DELETE FROM rate_limiter.candidates`); err == nil {
			t.Error("a candidate can be deleted, and its name used again")
		}
	}
}

func TestOneCandidateIsOpenAtATime(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	insertGood(t, pool, "candidates")
	if err := insert(t, pool, "candidates", row{"name": "august"}); violates(t, err) != "candidates_one_open" {
		t.Errorf("a second open candidate: %v", err)
	}
	exec(t, pool, `UPDATE rate_limiter.candidates SET state = 'dropped'`)
	if err := insert(t, pool, "candidates", row{"name": "august"}); err != nil {
		t.Errorf("a candidate after one that was dropped: %v", err)
	}
	exec(t, pool, `UPDATE rate_limiter.candidates SET state = 'promoted' WHERE name = 'august'`)
	exec(t, pool, `UPDATE rate_limiter.candidates SET state = 'rolled_back' WHERE name = 'august'`)
}

func TestOperatorsAndTheAPIChangeCandidatesAndNodesReadThem(t *testing.T) {
	s := pgtest.Granted(t)
	for i, role := range []string{pgtest.Operator, pgtest.ServerRole} {
		pool := pgtest.Pool(t, s.RoleDSN(role))
		name := fmt.Sprint("c", i)
		for _, table := range []string{"candidates", "candidate_policies", "candidate_tenants"} {
			if err := insert(t, pool, table, good[table].with(named(table, name))); err != nil {
				t.Errorf("%s: %v", role, err)
			}
		}
		exec(t, pool, `UPDATE rate_limiter.candidate_policies SET was = body WHERE candidate = $1`, name)
		exec(t, pool, `DELETE FROM rate_limiter.candidate_tenants`)
		exec(t, pool, `UPDATE rate_limiter.candidates SET state = 'dropped' WHERE name = $1`, name)
	}
	node := pgtest.Pool(t, s.RoleDSN(pgtest.Node))
	for table, want := range map[string]int{"candidates": 2, "candidate_policies": 2, "candidate_tenants": 0} {
		if n := count(t, node, table); n != want {
			t.Errorf("a node reads %d rows of %s, want %d", n, table, want)
		}
	}
}

// named returns the column of a table that names its candidate.
func named(table, candidate string) row {
	if table == "candidates" {
		return row{"name": candidate}
	}
	return row{"candidate": candidate}
}
