package abuse

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/leadership"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
)

// maxName bounds the bytes of a tenant's name: an override cannot name a longer one.
const maxName = 128

// tenant is what one transaction reads and writes of a tenant.
type tenant struct {
	stored
	seen    Observation
	verdict Verdict
}

// stored is what abuse_tenants has of a tenant.
type stored struct {
	Tenant                      string
	State                       State
	Reason                      string
	HasPenalty                  bool
	PenaltyUntil, ForgivenUntil time.Time // by the database's clock; 1970: none
	Ended                       int64     // a penalty that an operator has ended; 0: none
}

// observe reads the tenants that have sent in a minute or are on the ladder.
func (d *Detector) observe(ctx context.Context, tx pgx.Tx, minute time.Time) (map[string]*tenant, error) {
	all := map[string]*tenant{}
	for _, read := range [...]func(context.Context, pgx.Tx, time.Time, map[string]*tenant) error{
		d.readRequests, readDenials, d.readStates, d.readExemptions,
	} {
		if err := read(ctx, tx, minute, all); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// add returns a tenant, which is new if it is not there.
func add(all map[string]*tenant, name string) *tenant {
	t := all[name]
	if t == nil {
		t = &tenant{stored: stored{Tenant: name}, seen: Observation{Factor: 1000, Most: LongBan}}
		all[name] = t
	}
	return t
}

// readRequests reads what was admitted: in the minute, in the two before it, and in the window that ends with it. Of
// more tenants than it may read it reads those with denials, then those that are remembered, and then those that send
// most.
func (d *Detector) readRequests(ctx context.Context, tx pgx.Tx, minute time.Time, all map[string]*tenant) error {
	rows, _ := tx.Query(ctx, `SELECT n.name, u.last, u.second, u.third, u.admitted
		FROM (
			SELECT tenant, sum(admitted)::bigint AS admitted,
				coalesce(sum(admitted) FILTER (WHERE at = $1), 0)::bigint AS last,
				coalesce(sum(admitted) FILTER (WHERE at = $1 - interval '1 minute'), 0)::bigint AS second,
				coalesce(sum(admitted) FILTER (WHERE at = $1 - interval '2 minutes'), 0)::bigint AS third
			FROM rate_limiter.usage_minutes
			WHERE at > $1::timestamptz - $2::interval AND at <= $1
				AND policy = (SELECT id FROM rate_limiter.usage_names WHERE name = '')
			GROUP BY tenant
		) u
		JOIN rate_limiter.usage_names n ON n.id = u.tenant
		LEFT JOIN (
			SELECT DISTINCT tenant FROM rate_limiter.abuse_denials
			WHERE at > $1::timestamptz - $2::interval AND at <= $1
		) denied ON denied.tenant = n.name
		LEFT JOIN rate_limiter.abuse_tenants state ON state.tenant = n.name
		WHERE octet_length(n.name) BETWEEN 1 AND $3
		ORDER BY denied.tenant IS NULL, state.tenant IS NULL, u.admitted DESC LIMIT $4`,
		minute, Window, maxName, d.maxScored)
	var name string
	var last, second, third, window int64
	_, err := pgx.ForEachRow(rows, []any{&name, &last, &second, &third, &window}, func() error {
		seen := &add(all, name).seen
		seen.Minute.Admitted, seen.Window.Admitted = last, window
		seen.Before[0].Admitted, seen.Before[1].Admitted = second, third
		return nil
	})
	return leadership.Wrap("read requests", err)
}

// readDenials reads what was denied, and merges the sketches of the window.
func readDenials(ctx context.Context, tx pgx.Tx, minute time.Time, all map[string]*tenant) error {
	rows, _ := tx.Query(ctx, `SELECT at, tenant, limited, penalized, unavailable, users, addresses, credentials
		FROM rate_limiter.abuse_denials
		WHERE at > $1::timestamptz - $2::interval AND at <= $1 AND octet_length(tenant) BETWEEN 1 AND $3
		ORDER BY tenant`, minute, Window, maxName)
	type minuteOf struct {
		At time.Time
		usage.Denials
	}
	denied, err := pgx.CollectRows(rows, pgx.RowToStructByPos[minuteOf])
	if err != nil {
		return fmt.Errorf("read denials: %w", err)
	}
	var merged usage.Denials // of the window of one tenant
	for i := range denied {
		m := &denied[i]
		if merged.Tenant != m.Tenant {
			merged = usage.Denials{Tenant: m.Tenant}
		}
		merged.Merge(&m.Denials)
		seen := &add(all, m.Tenant).seen
		seen.Window.Denied += m.Limited
		seen.Window.Penalized += m.Penalized
		switch ago := int(minute.Sub(m.At) / time.Minute); {
		case ago == 0:
			seen.Minute.Denied, seen.Minute.Penalized, seen.Unavailable = m.Limited, m.Penalized, m.Unavailable
		case ago <= len(seen.Before):
			seen.Before[ago-1].Denied, seen.Before[ago-1].Penalized = m.Limited, m.Penalized
		}
		seen.Users, seen.Addresses = merged.Users.Estimate(), merged.Addresses.Estimate()
		seen.Credentials = merged.Credentials.Estimate()
	}
	return nil
}

// readStates reads what is remembered of these tenants, and of those on the ladder. It drops tenants that have sent
// nothing in the minute and are on no step.
func (d *Detector) readStates(ctx context.Context, tx pgx.Tx, minute time.Time, all map[string]*tenant) error {
	rows, _ := tx.Query(ctx, `SELECT t.tenant, t.state, t.reason, t.override IS NOT NULL,
			coalesce(t.override_until, 'epoch'), coalesce(t.forgiven_until, 'epoch'),
			CASE WHEN t.override_until > clock_timestamp() AND NOT EXISTS (
				SELECT FROM rate_limiter.overrides o WHERE o.id = t.override) THEN t.override ELSE 0 END
		FROM rate_limiter.abuse_tenants t
		WHERE t.tenant = ANY ($1) OR t.step <> 'none' OR t.override IS NOT NULL`, slices.Collect(maps.Keys(all)))
	states, err := pgx.CollectRows(rows, pgx.RowToStructByPos[stored])
	if err != nil {
		return fmt.Errorf("read states: %w", err)
	}
	for _, row := range states {
		t := add(all, row.Tenant)
		t.stored = row
		if d.options.Mode == Enforce && t.HasPenalty && t.PenaltyUntil.After(minute) {
			t.seen.Factor = t.State.Step.Factor()
		}
		if t.ForgivenUntil.After(minute) {
			t.seen.Most = None
		}
	}
	maps.DeleteFunc(all, func(_ string, t *tenant) bool {
		return t.seen.Minute == (Counts{}) && t.seen.Unavailable == 0 && t.State.Step == None && !t.HasPenalty
	})
	return nil
}

// readExemptions reads which tenants must not be on a step, or not be banned.
func (d *Detector) readExemptions(ctx context.Context, tx pgx.Tx, _ time.Time, all map[string]*tenant) error {
	names := slices.Collect(maps.Keys(all))
	rows, _ := tx.Query(ctx, `SELECT id, tier, false FROM rate_limiter.tenants WHERE id = ANY ($1) AND tier <> ''
		UNION ALL
		SELECT tenant, '', "user" = '' AND endpoint = '' AND credential = '' AND ip = '' FROM rate_limiter.overrides
		WHERE tenant = ANY ($1) AND kind = 'exempt' AND (permanent OR expires_at > clock_timestamp())
			AND (starts_at IS NULL OR starts_at <= clock_timestamp())`, names)
	tiers := map[string]string{} // of rows
	var name, tier string
	var whole bool
	_, err := pgx.ForEachRow(rows, []any{&name, &tier, &whole}, func() error {
		most := Tenth // a ban would go before the exemption
		switch {
		case tier != "":
			tiers[name] = tier
			return nil
		case whole:
			most = None
		}
		all[name].seen.Most = min(all[name].seen.Most, most)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read exemptions: %w", err)
	}
	for _, name := range names {
		if slices.Contains(d.options.ExemptTiers, cmp.Or(tiers[name], d.options.TierOf(name))) {
			all[name].seen.Most = None
		}
	}
	return nil
}
