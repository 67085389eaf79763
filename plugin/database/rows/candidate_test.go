package rows_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const july = "july"

// candidate opens a candidate that puts policies.
func candidate(t *testing.T, s *rows.DB, name string, puts ...rows.Policy) {
	t.Helper()
	_, _, err := s.CreateCandidate(t.Context(), ann, name)
	require.NoError(t, err)
	for _, p := range puts {
		_, _, err := s.PutCandidatePolicies(t.Context(), ann, name, p)
		require.NoError(t, err, "put %s", p.Key())
	}
}

// limited returns the daily policy with another limit.
func limited(limit int64) rows.Policy {
	p := daily()
	p.Limit.Limit = limit
	return p
}

// activeRows returns the active policies without what the database assigns.
func activeRows(t *testing.T, s *rows.DB) map[rows.PolicyKey]schema.Policy {
	t.Helper()
	list, err := s.Policies(t.Context(), rows.PolicyFilter{})
	require.NoError(t, err)
	found := map[rows.PolicyKey]schema.Policy{}
	for _, p := range list {
		found[p.Key()] = p.Policy
	}
	return found
}

// promote promotes july and returns the version.
func promote(t *testing.T, s *rows.DB) int64 {
	t.Helper()
	_, version, err := s.PromoteCandidate(t.Context(), ann, july, rows.Promotion{})
	require.NoError(t, err)
	return version
}

func TestACandidateIsPromotedAndRolledBackInOneVersionEach(t *testing.T) {
	s, _ := open(t)
	put(t, s, daily())
	put(t, s, named("old")[0])
	before := activeRows(t, s)

	candidate(t, s, july, limited(500), named("new")[0])
	_, _, err := s.DeleteCandidatePolicy(t.Context(), ann, july, named("old")[0].Key())
	require.NoError(t, err)
	assert.Equal(t, before, activeRows(t, s), "an open candidate changes active policies")
	d, err := s.CandidateDiff(t.Context(), "")
	if err != nil || len(d.Diff.Create) != 1 || len(d.Diff.Update) != 1 || len(d.Diff.Delete) != 1 ||
		d.Diff.Update[0].After.Limit.Limit != 500 || !d.Moved.Empty() || d.Candidate.Policies != 3 {
		t.Fatalf("the difference is %+v (%v)", d, err)
	}

	last, _ := versions(t, s)
	if version := promote(t, s); version != last+1 {
		t.Errorf("promoted in version %d, want one more than %d", version, last)
	}
	after := activeRows(t, s)
	if len(after) != 2 || after[daily().Key()].Limit.Limit != 500 || after[named("new")[0].Key()].Name == "" {
		t.Errorf("after the promotion there are %+v", after)
	}
	if again, err := s.CandidateDiff(t.Context(), july); err != nil || keysOf(again.Diff) != keysOf(d.Diff) {
		t.Errorf("a promoted candidate shows the changes %+v (%v), want those it has made", again.Diff, err)
	}

	if _, version, err := s.RollBackCandidate(t.Context(), ann, july); err != nil || version != last+2 {
		t.Errorf("rolled back in version %d (%v), want %d", version, err, last+2)
	}
	assert.Equal(t, before, activeRows(t, s), "after the rollback")
	wantAudited(t, s, last+1, "candidate update july", "policy delete 2", "policy insert", "policy update 1")
	wantAudited(t, s, last+2, "candidate update july", "policy insert", "policy update 1")
}

// keysOf names the policies of a difference.
func keysOf(d rows.Diff) string {
	var names []string
	for _, p := range d.Create {
		names = append(names, "+"+p.Key().String())
	}
	for _, r := range d.Update {
		names = append(names, fmt.Sprintf("~%s %d %d", r.Before.Key(), r.Before.Limit.Limit, r.After.Limit.Limit))
	}
	for _, p := range d.Delete {
		names = append(names, "-"+p.Key().String())
	}
	return strings.Join(names, " ")
}

// wantAudited checks that the audit has entries of a version by their beginnings, by ann with her reason.
func wantAudited(t *testing.T, s *rows.DB, version int64, want ...string) {
	t.Helper()
	entries, err := s.Audit(t.Context(), rows.AuditFilter{Max: 1000})
	require.NoError(t, err)
	found := map[string]bool{}
	for _, e := range entries {
		if e.Version == version && e.Actor == ann.Actor && e.Reason == ann.Reason {
			found[strings.Join([]string{e.Kind, e.Operation, e.Key}, " ")] = true
		}
	}
	for _, entry := range want {
		matches := false
		for text := range found {
			matches = matches || strings.HasPrefix(text, entry)
		}
		assert.True(t, matches, "version %d has no entry %q in the audit, only %v", version, entry, found)
	}
}

func TestAPolicyThatIsDeniedIsDeniedInACandidateInTheSameWords(t *testing.T) {
	s, _ := open(t)
	candidate(t, s, july)
	for name, change := range map[string]func(*rows.Policy){
		"limit":  func(p *rows.Policy) { p.Limit.Limit = 0 },
		"both":   func(p *rows.Policy) { p.Tenant = "acme" },
		"note":   func(p *rows.Policy) { p.PublicNote = "two\nlines" },
		"tenant": func(p *rows.Policy) { p.Tier, p.Tenant = "", strings.Repeat("x", 200) },
	} {
		p := daily()
		change(&p)
		_, _, want := s.PutPolicy(t.Context(), ann, p)
		_, _, got := s.PutCandidatePolicies(t.Context(), ann, july, p)
		if want == nil || got == nil || got.Error() != want.Error() {
			t.Errorf("%s: %v, want as of a policy: %v", name, got, want)
		}
	}
	if d, err := s.CandidateDiff(t.Context(), july); err != nil || !d.Diff.Empty() {
		t.Errorf("the candidate has %+v (%v)", d.Diff, err)
	}
}

func TestAPutThatIsAsTheActivePolicyIsNoChange(t *testing.T) {
	s, _ := open(t)
	put(t, s, daily())
	candidate(t, s, july, limited(5), daily())
	c, err := s.Candidate(t.Context(), july)
	if err != nil || c.Policies != 0 {
		t.Errorf("the candidate is %+v (%v), want no changes", c, err)
	}
	_, _, err = s.PromoteCandidate(t.Context(), ann, july, rows.Promotion{})
	wantConflict(t, "promote without changes", err)
}

func TestAChangeOfACandidateIsUndoneOrForgotten(t *testing.T) {
	s, _ := open(t)
	put(t, s, daily())
	candidate(t, s, july, limited(5), named("new")[0])
	_, err := s.UndoCandidatePolicy(t.Context(), ann, july, daily().Key())
	assert.NoError(t, err)
	_, _, err = s.DeleteCandidatePolicy(t.Context(), ann, july, named("new")[0].Key())
	assert.NoError(t, err)
	if d, err := s.CandidateDiff(t.Context(), july); err != nil || d.Candidate.Policies != 0 {
		t.Errorf("the candidate changes %+v (%v), want nothing", d.Diff, err)
	}
	_, err = s.UndoCandidatePolicy(t.Context(), ann, july, daily().Key())
	wantMissing(t, "undo what is no change", err)
	_, _, err = s.DeleteCandidatePolicy(t.Context(), ann, july, named("new")[0].Key())
	wantMissing(t, "delete what does not exist", err)
}

func TestAPromotionIsDeniedWithTheDifferenceOncePoliciesMoved(t *testing.T) {
	s, _ := open(t)
	put(t, s, daily())
	candidate(t, s, july, limited(5))
	put(t, s, limited(7))
	put(t, s, named("other")[0])

	_, _, err := s.PromoteCandidate(t.Context(), ann, july, rows.Promotion{})
	moved := new(rows.MovedError)
	if !errors.As(err, &moved) || len(moved.Diff.Create) != 1 || len(moved.Diff.Update) != 1 ||
		moved.Diff.Update[0].Before.Limit.Limit != 1000 || moved.Diff.Update[0].After.Limit.Limit != 7 {
		t.Fatalf("%v, want the difference", err)
	}
	if text := err.Error(); !strings.Contains(text, "policy daily of tier gold (changed)") ||
		!strings.Contains(text, "policy other of tier gold (new)") || !strings.Contains(text, "since version 1") {
		t.Errorf("the error is %q", text)
	}
	seen, err := s.CandidateDiff(t.Context(), july)
	if err != nil || keysOf(seen.Moved) != keysOf(moved.Diff) {
		t.Errorf("the difference is %+v (%v), want that of the error", seen.Moved, err)
	}

	put(t, s, limited(8)) // after it was seen
	_, _, err = s.RebaseCandidate(t.Context(), ann, july, seen.Version)
	if !errors.As(err, &moved) || len(moved.Diff.Update) != 1 {
		t.Errorf("a rebase on policies that have moved again: %v", err)
	}
	for _, version := range []int64{0, 1000} {
		_, _, err = s.RebaseCandidate(t.Context(), ann, july, version)
		wantInvalid(t, "a rebase on no version", err, "version")
	}
	seen, err = s.CandidateDiff(t.Context(), july)
	require.NoError(t, err)
	_, base, err := s.RebaseCandidate(t.Context(), ann, july, seen.Version)
	if c, _ := s.Candidate(t.Context(), july); err != nil || c.BaseVersion != base-1 {
		t.Errorf("the base is version %d, after a rebase in version %d (%v)", c.BaseVersion, base, err)
	}
	promote(t, s)
	assert.EqualValues(t, 5, activeRows(t, s)[daily().Key()].Limit.Limit, "the limit")
}

func TestPoliciesThatAreAsTheyWereHaveNotMoved(t *testing.T) {
	s, _ := open(t)
	put(t, s, daily())
	candidate(t, s, july, named("new")[0])
	put(t, s, limited(7))
	put(t, s, daily())
	put(t, s, named("passing")[0])
	require.NoError(t, drop(t, s, ann, named("passing")[0]))
	promote(t, s)
}

func TestARollbackIsDeniedOncePoliciesThatItRestoresHaveChanged(t *testing.T) {
	s, _ := open(t)
	put(t, s, daily())
	put(t, s, named("old")[0])
	candidate(t, s, july, limited(5))
	_, _, err := s.DeleteCandidatePolicy(t.Context(), ann, july, named("old")[0].Key())
	require.NoError(t, err)
	promote(t, s)
	put(t, s, named("unrelated")[0])
	put(t, s, limited(6))
	put(t, s, named("old")[0])
	_, _, err = s.RollBackCandidate(t.Context(), ann, july)
	moved := new(rows.MovedError)
	if !errors.As(err, &moved) || len(moved.Diff.Update) != 1 || len(moved.Diff.Create) != 1 {
		t.Fatalf("%v, want two policies", err)
	}
	put(t, s, limited(5))
	require.NoError(t, drop(t, s, ann, named("old")[0]))
	_, _, err = s.RollBackCandidate(t.Context(), ann, july)
	assert.NoError(t, err, "after they are as it left them")
}

func TestACandidateThatHasEndedIsAConflictThatNamesTheEnd(t *testing.T) {
	s, _ := open(t)
	candidate(t, s, july, daily())
	_, _, err := s.CreateCandidate(t.Context(), ann, "august")
	wantConflict(t, "a second candidate", err)
	promote(t, s)
	writes := map[string]func() error{
		"promote twice": func() error {
			_, _, err := s.PromoteCandidate(t.Context(), ann, july, rows.Promotion{})
			return err
		},
		"put":      func() error { _, _, err := s.PutCandidatePolicies(t.Context(), ann, july, limited(2)); return err },
		"drop":     func() error { _, _, err := s.DropCandidate(t.Context(), ann, july); return err },
		"rebase":   func() error { _, _, err := s.RebaseCandidate(t.Context(), ann, july, 1); return err },
		"the name": func() error { _, _, err := s.CreateCandidate(t.Context(), ann, july); return err },
		"assign": func() error {
			_, _, err := s.AssignCandidate(t.Context(), ann, july, rows.Assignment{Add: []string{"acme"}})
			return err
		},
	}
	for name, do := range writes {
		err := do()
		wantConflict(t, name, err)
		if name != "the name" && !strings.Contains(fmt.Sprint(err), "candidate july: it was promoted at 20") {
			t.Errorf("%s: %v, want who has promoted it, and when", name, err)
		}
	}
	_, _, err = s.RollBackCandidate(t.Context(), ann, july)
	require.NoError(t, err)
	_, _, err = s.RollBackCandidate(t.Context(), ann, july)
	wantConflict(t, "roll back twice", err)
	_, _, err = s.PromoteCandidate(t.Context(), ann, july, rows.Promotion{})
	wantConflict(t, "promote what was rolled back", err)
	_, _, err = s.PromoteCandidate(t.Context(), ann, "none", rows.Promotion{})
	wantMissing(t, "promote what does not exist", err)
	candidate(t, s, "august")
}

func TestAPromotionOfWhatHasChangedSinceItWasSeenIsAConflict(t *testing.T) {
	s, _ := open(t)
	candidate(t, s, july, daily())
	seen, err := s.Candidate(t.Context(), july)
	require.NoError(t, err)
	_, _, err = s.PutCandidatePolicies(t.Context(), ann, july, limited(1))
	require.NoError(t, err)
	p := rows.Promotion{UnchangedSince: seen.PoliciesAt}
	_, _, err = s.PromoteCandidate(t.Context(), ann, july, p)
	wantConflict(t, "promote", err)
	seen, _ = s.Candidate(t.Context(), july)
	p.UnchangedSince = seen.PoliciesAt
	_, _, err = s.PromoteCandidate(t.Context(), ann, july, p)
	assert.NoError(t, err, "promote what was seen")
}

func TestTenantsAreAssignedByPercentageAndByName(t *testing.T) {
	s, _ := open(t)
	candidate(t, s, july)
	five := int64(5)
	c, _, err := s.AssignCandidate(t.Context(), ann, july,
		rows.Assignment{Percent: &five, Add: []string{"globex", "acme", "acme"}})
	if err != nil || c.Percent != 5 || !reflect.DeepEqual(c.Tenants, []string{"acme", "globex"}) {
		t.Errorf("assigned %+v (%v)", c, err)
	}
	c, _, err = s.AssignCandidate(t.Context(), ann, july, rows.Assignment{Remove: []string{"acme"}})
	if err != nil || c.Percent != 5 || !reflect.DeepEqual(c.Tenants, []string{"globex"}) {
		t.Errorf("assigned %+v (%v)", c, err)
	}
	for field, a := range map[string]rows.Assignment{
		"percent": {},
		"tenant":  {Add: []string{""}},
	} {
		_, _, err := s.AssignCandidate(t.Context(), ann, july, a)
		wantInvalid(t, field, err, field)
	}
	for _, percent := range []int64{-1, 101, 1 << 40} {
		_, _, err := s.AssignCandidate(t.Context(), ann, july, rows.Assignment{Percent: &percent})
		wantInvalid(t, fmt.Sprint(percent), err, "percent")
	}
	_, _, err = s.AssignCandidate(t.Context(), ann, july, rows.Assignment{Remove: []string{"acme"}})
	wantMissing(t, "remove a tenant twice", err)
	many := make([]string, rows.MaxCandidateTenants)
	for i := range many {
		many[i] = fmt.Sprint("t", i)
	}
	_, _, err = s.AssignCandidate(t.Context(), ann, july, rows.Assignment{Add: many})
	wantConflict(t, "too many tenants", err)
}

func TestAssigningATenantThatNothingIsKnownAboutIsAWarning(t *testing.T) {
	s, pool := open(t)
	p := daily()
	p.Tier, p.Tenant = "", "acme"
	put(t, s, p)
	pgtest.Exec(t, pool, `INSERT INTO rate_limiter.usage_names (name) VALUES ('globex')`)
	warnings, err := s.AssignmentWarnings(t.Context(), rows.Assignment{Add: []string{"acme", "globex", "acmee"}})
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], `"acmee"`) {
		t.Errorf("the warnings are %q (%v), want one of the misspelled tenant", warnings, err)
	}
}

func TestTheNameOfACandidateHasAForm(t *testing.T) {
	s, _ := open(t)
	for _, name := range []string{"", ".", "-x", "a b", "a/b", "ä", strings.Repeat("x", 65)} {
		_, _, err := s.CreateCandidate(t.Context(), ann, name)
		wantInvalid(t, name, err, "name")
	}
}

func TestAPromotionIsReviewedBesideWhatHasMoved(t *testing.T) {
	s, _ := open(t)
	put(t, s, daily())
	shared := daily()
	shared.Name, shared.Scope, shared.Limit.Limit = "all", "global", 2*daily().Limit.Limit
	candidate(t, s, july, shared)
	put(t, s, limited(3*daily().Limit.Limit))
	d, err := s.CandidateDiff(t.Context(), july)
	if err == nil {
		_, _, err = s.RebaseCandidate(t.Context(), ann, july, d.Version)
	}
	require.NoError(t, err)
	unwanted := errors.New("unwanted")
	accept := rows.Approval{Accept: func(r rows.Review) error {
		if len(r.LockOuts) == 1 && r.LockOuts[0].Key == shared.Key() {
			return unwanted
		}
		return nil
	}}
	_, _, err = s.PromoteCandidate(t.Context(), ann, july, rows.Promotion{Approval: accept})
	if declined := new(rows.DeclinedError); !errors.As(err, &declined) || !errors.Is(err, unwanted) {
		t.Errorf("a promotion that is declined returns %v", err)
	}
	if _, isActive := activeRows(t, s)[shared.Key()]; isActive {
		t.Error("a declined promotion writes policies")
	}
	percent := int64(5)
	_, _, err = s.AssignCandidate(t.Context(), ann, july, rows.Assignment{Percent: &percent, Approval: accept})
	assert.ErrorIs(t, err, unwanted, "an assignment that is declined")
	none := rows.Assignment{Percent: new(int64), Approval: accept}
	_, _, err = s.AssignCandidate(t.Context(), ann, july, none)
	assert.NoError(t, err, "an assignment of no tenant")
}

func TestACandidateIsReviewedBesideItsOwnChanges(t *testing.T) {
	s, _ := open(t)
	put(t, s, daily())
	shared := daily()
	shared.Name, shared.Scope, shared.Limit.Limit = "all", "global", 500
	candidate(t, s, july)
	if r, err := s.Review(t.Context(), nil, july, shared); err != nil || len(r.LockOuts) != 1 {
		t.Errorf("a limit of all tenants below that of one: %+v (%v)", r, err)
	}
	_, _, err := s.PutCandidatePolicies(t.Context(), ann, july, limited(50))
	require.NoError(t, err)
	if r, err := s.Review(t.Context(), nil, july, shared); err != nil || len(r.LockOuts) != 0 {
		t.Errorf("beside a lower limit of the candidate: %+v (%v)", r, err)
	}
}
