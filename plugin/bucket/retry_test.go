package bucket

import (
	"context"
	"errors"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// stutters is a store whose first call of each kind fails, after it has emptied one bucket.
type stutters struct {
	Shared
	takes, forgets int
}

func (s *stutters) Take(_ context.Context, _ []policy.Bound, statuses []decision.Status) error {
	statuses[0] = decision.Status{Source: decision.Redis}
	if s.takes++; s.takes == 1 {
		statuses[0] = decision.Status{Failure: decision.Lost}
	}
	return nil
}

func (s *stutters) Forget(_ context.Context, keys []policy.Key) (int, error) {
	if s.forgets++; s.forgets == 1 {
		return 1, errors.New("lost")
	}
	return len(keys) - 1, nil
}

func TestWhatReadsOrEmptiesIsAskedForOnceMoreAndWhatSpendsIsNot(t *testing.T) {
	for cost, want := range map[int64]decision.Failure{0: decision.NoFailure, 1: decision.Lost} {
		store, statuses := &stutters{}, make([]decision.Status, 1)
		if err := (twice{store}).Take(t.Context(), []policy.Bound{{Cost: cost}}, statuses); err != nil || statuses[0].Failure != want {
			t.Errorf("a take of %d: %+v, %v, want failure %q", cost, statuses[0], err, want)
		}
	}
	if n, err := (twice{&stutters{}}).Forget(t.Context(), make([]policy.Key, 3)); n != 3 || err != nil {
		t.Errorf("%d buckets emptied, %v, want 3", n, err)
	}
}
