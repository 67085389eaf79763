package bucket

import (
	"context"
	"errors"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// stutters is a store whose first call of each kind fails, after it has emptied one bucket.
type stutters struct {
	Central
	peeks, forgets int
}

func (s *stutters) Peek(_ context.Context, _ []policy.Bound, statuses []decision.Status) error {
	statuses[0] = decision.Status{Source: decision.Redis}
	if s.peeks++; s.peeks == 1 {
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

func TestAPeekOrAResetThatFailsIsRetriedOnce(t *testing.T) {
	statuses := make([]decision.Status, 1)
	err := retrying{&stutters{}}.Peek(t.Context(), make([]policy.Bound, 1), statuses)
	if err != nil || statuses[0].Failure != decision.NoFailure {
		t.Errorf("a peek: %+v, %v, want the second answer", statuses[0], err)
	}
	if n, err := (retrying{&stutters{}}).Forget(t.Context(), make([]policy.Key, 3)); n != 3 || err != nil {
		t.Errorf("%d buckets deleted, %v, want 3", n, err)
	}
}
