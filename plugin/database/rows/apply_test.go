package rows_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// named returns policies like daily, with names.
func named(names ...string) []rows.Policy {
	list := make([]rows.Policy, len(names))
	for i, name := range names {
		list[i] = daily()
		list[i].Name = name
	}
	return list
}

// names lists the policies of the database with their limits.
func names(t *testing.T, s *rows.DB) string {
	t.Helper()
	all, err := s.Policies(t.Context(), rows.PolicyFilter{})
	require.NoError(t, err)
	var list []string
	for _, p := range all {
		list = append(list, fmt.Sprint(p.Name, "=", p.Limit.Limit))
	}
	return strings.Join(list, " ")
}

func TestApplyMakesTheSetInOneVersionAndNothingTheSecondTime(t *testing.T) {
	s, _ := open(t)
	put(t, s, named("changed")[0])
	put(t, s, named("deleted")[0])
	set := rows.Set{Policies: named("changed", "created")}
	set.Policies[0].Limit.Limit = 7
	for round, want := range []string{"1 1 1 0", "0 0 0 2"} {
		d, version, err := s.Apply(t.Context(), ann, set)
		if err != nil || version != 3 {
			t.Fatalf("round %d: version %d (%v), want 3", round, version, err)
		}
		assert.Equal(t, want, fmt.Sprint(len(d.Create), len(d.Update), len(d.Delete), d.Unchanged),
			"round %d creates, updates, deletes,", round)
		assert.Equal(t, "changed=7 created=1000", names(t, s), "after round %d", round)
	}
}

func TestDiffShowsWhatApplyWouldDoAndDoesNothing(t *testing.T) {
	s, _ := open(t)
	put(t, s, named("deleted")[0])
	d, err := s.Diff(t.Context(), rows.Set{Policies: named("created")})
	if err != nil || len(d.Create) != 1 || len(d.Delete) != 1 {
		t.Errorf("the difference is %+v (%v), want a create and a delete", d, err)
	}
	assert.Equal(t, "deleted=1000", names(t, s), "after it")
}

func TestApplyKeepsOtherNamespacesAndPoliciesOutsideAPartialSet(t *testing.T) {
	s, _ := open(t)
	other := named("other")[0]
	other.Namespace = "eu"
	put(t, s, other)
	put(t, s, named("kept")[0])
	_, _, err := s.Apply(t.Context(), ann, rows.Set{Policies: named("added"), Partial: true})
	require.NoError(t, err)
	assert.Equal(t, "other=1000 kept=1000 added=1000", names(t, s), "a partial set")
	_, _, err = s.Apply(t.Context(), ann, rows.Set{})
	require.NoError(t, err)
	assert.Equal(t, "other=1000", names(t, s), "an empty set")
}

func TestOneBadPolicyOfASetIsNamedAndNothingIsWritten(t *testing.T) {
	s, _ := open(t)
	for name, spoil := range map[string]func(*rows.Policy){
		"limit":     func(p *rows.Policy) { p.Limit.Limit = 0 },
		"algorithm": func(p *rows.Policy) { p.Algorithm = "gcra" },
		"namespace": func(p *rows.Policy) { p.Namespace = "eu" },
	} {
		set := rows.Set{Policies: named("a", "b", "c")}
		spoil(&set.Policies[1])
		_, _, err := s.Apply(t.Context(), ann, set)
		wantInvalid(t, name, err, name)
		if invalid := new(rows.InvalidError); !errors.As(err, &invalid) ||
			!strings.HasPrefix(invalid.What, "policy b of tier gold") {
			t.Errorf("%s: %v, want policy b named", name, err)
		}
	}
	assert.Equal(t, "", names(t, s))
}

func TestSoakManyPoliciesApplyInOneVersion(t *testing.T) {
	many := soak.Count(1000, 10_000)
	s, _ := open(t)
	var set rows.Set
	for i := range many {
		p := daily()
		p.Tier, p.Tenant = "", fmt.Sprint("t", i)
		set.Policies = append(set.Policies, p)
	}
	began := time.Now()
	d, version, err := s.Apply(t.Context(), ann, set)
	t.Logf("%d policies took %v", many, time.Since(began))
	if err != nil || version != 1 || len(d.Create) != many {
		t.Errorf("%d created in version %d (%v), want %d in 1", len(d.Create), version, err, many)
	}
}
