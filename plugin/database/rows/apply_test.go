package rows_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
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

func TestCostOfZeroDiffersFromNoCost(t *testing.T) {
	free := int64(0)
	with, without := daily(), daily()
	with.Cost = &free
	d, err := rows.Compare([]rows.Policy{with}, []rows.Policy{without})
	if err != nil || len(d.Update) != 1 {
		t.Errorf("the difference is %+v (%v), want an update", d, err)
	}
}

func TestTwoPoliciesOfOneKeyInASetAreInvalid(t *testing.T) {
	first, second := daily(), daily()
	first.Endpoint, second.Endpoint, second.Limit.Limit = "GET /a/{id}/b", "GET /a/{key}/b", 7
	_, err := rows.Compare(nil, []rows.Policy{first, second})
	wantInvalid(t, "one key twice", err, "")
}

// Applying a difference turns any current policies into the desired ones.
func TestApplyingADifferenceYieldsTheDesiredPolicies(t *testing.T) {
	policies := rapid.Custom(func(t *rapid.T) []rows.Policy {
		byKey := map[string]rows.Policy{}
		for i := range rapid.IntRange(0, 12).Draw(t, "policies") {
			p := daily()
			p.ID, p.Namespace, p.Algorithm = int64(i+1), "default", "token_bucket"
			p.Name = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
			p.Endpoint = rapid.SampledFrom([]string{"", "GET /{x}", "GET /{y}", "GET /z"}).Draw(t, "endpoint")
			p.Limit.Limit = rapid.Int64Range(1, 2).Draw(t, "limit")
			byKey[canonicalKey(p)] = p
		}
		return slices.Collect(maps.Values(byKey))
	})
	rapid.Check(t, func(t *rapid.T) {
		current, desired := policies.Draw(t, "current"), policies.Draw(t, "desired")
		d, err := rows.Compare(current, desired)
		require.NoError(t, err)
		got := map[string]string{}
		for _, p := range current {
			got[canonicalKey(p)] = values(p)
		}
		for _, p := range d.Delete {
			delete(got, canonicalKey(p))
		}
		for _, r := range d.Update {
			got[canonicalKey(r.After)] = values(r.After)
		}
		for _, p := range d.Create {
			if _, exists := got[canonicalKey(p)]; exists {
				t.Fatalf("%s exists and is created", p.Key())
			}
			got[canonicalKey(p)] = values(p)
		}
		want := map[string]string{}
		for _, p := range desired {
			want[canonicalKey(p)] = values(p)
		}
		require.True(t, maps.Equal(got, want), "after the difference there is %v, want %v", got, want)
		require.Equal(t, len(desired)-len(d.Create)-len(d.Update), d.Unchanged, "are unchanged of %d", len(desired))
	})
}

// canonicalKey returns the key of a policy of the property above, where endpoints have at most one parameter.
func canonicalKey(p rows.Policy) string {
	return p.Name + " " + strings.NewReplacer("{x}", "{}", "{y}", "{}").Replace(p.Endpoint)
}

func values(p rows.Policy) string { return fmt.Sprint(p.Endpoint, p.Limit.Limit) }

func TestADocumentHasNoTopUpsAndLeavesThem(t *testing.T) {
	s, _ := open(t)
	topUp := row(schema.Override{
		Kind: schema.KindTopUp, Tenant: "acme", Policy: "monthly", Amount: 5, ExpiresAt: ban().ExpiresAt,
	})
	add(t, s, topUp)
	add(t, s, topUp)
	set, err := s.Dump(t.Context(), "")
	require.NoError(t, err)
	require.Empty(t, set.Overrides)
	set.Overrides = []rows.Override{}
	diff, _, err := s.Apply(t.Context(), ann, set)
	require.NoError(t, err)
	require.True(t, diff.Empty())
	topUp.Author, topUp.Reason = "ann", "r"
	set.Overrides = []rows.Override{topUp}
	_, _, err = s.Apply(t.Context(), ann, set)
	wantInvalid(t, "a document with a top-up", err, "kind")
	all, err := s.Overrides(t.Context(), rows.OverrideFilter{})
	require.NoError(t, err)
	require.Len(t, all, 2)
}
