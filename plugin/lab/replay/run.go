package replay

import (
	"context"
	"errors"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
)

// Run decides the requests of a stream and returns the report. decided, if it is not nil, is called with each decision;
// it must not keep it. If ctx ends, the report is of what was decided before, beside the error.
func Run(
	ctx context.Context, stream *Stream, gateway *Gateway, decided func(*Request, *decision.Decision),
) (*Report, error) {
	var tally Tally
	err := stream.Each(ctx, func(r *Request) error {
		d, err := gateway.Decide(ctx, r)
		unmatched, isUnmatched := errors.AsType[*UnmatchedError](err)
		switch {
		case errors.Is(err, ErrUncovered):
			tally.AddUncovered(r)
		case isUnmatched:
			tally.AddUnmatched(r, unmatched.Routes)
		case err != nil:
			tally.AddUndecided(r)
		default:
			tally.Add(r, d)
			if decided != nil {
				decided(r, d)
			}
		}
		return nil
	})
	report := tally.Report(stream.Counts())
	report.Evicted, report.WithoutTier = gateway.Evicted(), gateway.WithoutTier
	return report, err
}
