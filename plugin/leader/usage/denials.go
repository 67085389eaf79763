package usage

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

// denialsKept is how long denials are kept: abuse detection reads the last minutes.
const denialsKept = time.Hour

// denials holds the denials of batches by minute and tenant.
type denials map[denialKey]*denialRow

type denialKey struct {
	at     int64 // seconds since 1970, of the begin of a minute
	tenant string
}

// denialRow is a row of the table. Its first two columns are the key.
type denialRow struct {
	At time.Time
	usage.Denials
}

func (d denials) addBatch(began time.Time, all []usage.Denials) {
	for _, n := range all {
		d.add(&denialRow{began.Truncate(time.Minute), n})
	}
}

func (d denials) add(n *denialRow) {
	k := denialKey{n.At.Unix(), n.Tenant}
	if have := d[k]; have != nil {
		have.Merge(&n.Denials)
		return
	}
	d[k] = n
}

// rows returns the denials in the order of the primary key, so that no two writers wait for each other.
func (d denials) rows() []*denialRow {
	return slices.SortedFunc(maps.Values(d), func(a, b *denialRow) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Tenant, b.Tenant))
	})
}

// writeDenials adds the denials to those of their minutes. Sketches are merged here, because SQL cannot.
func (u *unpacking) writeDenials(ctx context.Context) error {
	oldest := u.state.now.Add(-denialsKept)
	maps.DeleteFunc(u.denied, func(_ denialKey, n *denialRow) bool { return n.At.Before(oldest) })
	if len(u.denied) == 0 {
		return nil
	}
	rows, _ := u.tx.Query(ctx, selectDenials, columnsOf(u.denied.rows())[:2]...)
	stored, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[denialRow])
	if err != nil {
		return fmt.Errorf("read denials: %w", err)
	}
	for _, n := range stored {
		u.denied.add(n)
	}
	_, err = u.tx.Exec(ctx, upsertDenials, columnsOf(u.denied.rows())...)
	return leadership.Wrap("write denials", err)
}

const (
	selectDenials = `SELECT at, tenant, limited, penalized, unavailable, users, addresses, credentials
		FROM rate_limiter.abuse_denials JOIN unnest($1::timestamptz[], $2::text[]) k (at, tenant) USING (at, tenant)`

	upsertDenials = `INSERT INTO rate_limiter.abuse_denials
			(at, tenant, limited, penalized, unavailable, users, addresses, credentials)
		SELECT * FROM unnest($1::timestamptz[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bytea[],
			$7::bytea[], $8::bytea[])
		ON CONFLICT (at, tenant) DO UPDATE SET limited = excluded.limited, penalized = excluded.penalized,
			unavailable = excluded.unavailable, users = excluded.users, addresses = excluded.addresses,
			credentials = excluded.credentials`
)
