package redis

import (
	"context"
	"errors"
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Raise charges each bucket with what is missing to a number of tokens, one for each bound, and returns the tokens that
// it charged. A bucket that counts as many or more stays as it is, so a repeated call changes nothing. Limits must be
// fixed windows: what is charged counts in the window of Redis's clock. The error joins those of the calls that failed,
// and the numbers of their bounds are 0.
func (s *Store) Raise(ctx context.Context, bounds []policy.Bound, least []int64) ([]int64, error) {
	charged, uncharged := make([]int64, len(bounds)), make([]policy.Bound, len(bounds))
	copy(uncharged, bounds)
	for i := range uncharged {
		uncharged[i].Cost = 0
	}
	parts := s.partsOf(uncharged, func(i int) bool { return least[i] > 0 })
	runAll(parts, func(p *part) {
		settlements := make([]settlement, len(p.indexes))
		for j, i := range p.indexes {
			settlements[j] = settlement{actual: least[i], most: least[i]}
		}
		var changes []int64
		changes, p.err = s.runSettle(ctx, p.bounds, settlements)
		for j, change := range changes {
			charged[p.indexes[j]] = change
		}
	})
	var errs []error
	for i := range parts {
		errs = append(errs, parts[i].err)
	}
	if err := errors.Join(errs...); err != nil {
		return charged, fmt.Errorf("raise buckets: %w", err)
	}
	return charged, nil
}
