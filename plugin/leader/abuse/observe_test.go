package abuse

import (
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestOfMoreTenantsThanItReadsThoseWithDenialsOrAStateComeFirst(t *testing.T) {
	w := newWorld(t)
	w.past("busy", minute{admitted: 1000})
	w.past("busier", minute{admitted: 2000})
	w.past("remembered", minute{admitted: 1})
	w.exec(`DELETE FROM rate_limiter.abuse_denials`)
	w.past("denied", minute{admitted: 2, denied: 1})
	w.exec(`INSERT INTO rate_limiter.abuse_tenants (tenant, state, mode, reason, scored_at)
		VALUES ('remembered', '{"step": "none"}', 'shadow', '', clock_timestamp())`)
	d := New(Options{Mode: Shadow, DeniedShare: DefaultDeniedShare, Log: slog.New(slog.DiscardHandler)})
	for most, want := range map[int][]string{
		1: {"denied"}, 2: {"denied", "remembered"}, 3: {"busier", "denied", "remembered"},
		9: {"busier", "busy", "denied", "remembered"},
	} {
		d.maxScored = most
		all := map[string]*tenant{}
		err := pgx.BeginFunc(t.Context(), w.keeper, func(tx pgx.Tx) error {
			var last time.Time
			err := tx.QueryRow(t.Context(), `SELECT max(at) FROM rate_limiter.usage_minutes`).Scan(&last)
			if err != nil {
				return err
			}
			return d.readRequests(t.Context(), tx, last, all)
		})
		if got := slices.Sorted(maps.Keys(all)); err != nil || !slices.Equal(got, want) {
			t.Errorf("of four tenants at most %d are %q, %v, want %q", most, got, err, want)
		}
	}
}
