package usage

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
)

// denialsKept is how long denials are kept: abuse detection reads the last minutes.
const denialsKept = time.Hour

// denials holds the denials of batches by minute and tenant.
type denials map[denialKey]*usage.Denials

type denialKey struct {
	at     int64 // seconds since 1970, of the begin of a minute
	tenant string
}

// addBatch adds the denials of a batch to a minute.
func (d denials) addBatch(began time.Time, all []usage.Denials) {
	for i := range all {
		d.add(began.Truncate(time.Minute), &all[i])
	}
}

// add adds the denials of a tenant to a minute.
func (d denials) add(at time.Time, n *usage.Denials) {
	k := denialKey{at.Unix(), n.Tenant}
	if have := d[k]; have != nil {
		have.Merge(n)
		return
	}
	d[k] = n
}

// denialRow is a row of the table. Its first two columns are the key.
type denialRow struct {
	At                              time.Time
	Tenant                          string
	Limited, Penalized, Unavailable int64
	Users, Addresses, Credentials   []byte
}

// rows returns the denials in the order of the primary key, so that no two writers wait for each other.
func (d denials) rows() []denialRow {
	rows := make([]denialRow, 0, len(d))
	for k, n := range d {
		rows = append(rows, denialRow{
			time.Unix(k.at, 0), k.tenant, n.Limited, n.Penalized, n.Unavailable,
			n.Users.Bytes(), n.Addresses.Bytes(), n.Credentials.Bytes(),
		})
	}
	slices.SortFunc(rows, func(a, b denialRow) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Tenant, b.Tenant)) })
	return rows
}

// writeDenials adds the denials to those of their minutes. Sketches are merged here, because SQL cannot.
func (u *unpacking) writeDenials(ctx context.Context) error {
	for k := range u.denied {
		if time.Unix(k.at, 0).Before(u.state.now.Add(-denialsKept)) {
			delete(u.denied, k)
		}
	}
	if len(u.denied) == 0 {
		return nil
	}
	if err := u.mergeStored(ctx, columnsOf(u.denied.rows())[:2]); err != nil {
		return fmt.Errorf("read denials: %w", err)
	}
	if _, err := u.tx.Exec(ctx, upsertDenials, columnsOf(u.denied.rows())...); err != nil {
		return fmt.Errorf("write denials: %w", err)
	}
	return nil
}

// mergeStored adds what the table has of keys.
func (u *unpacking) mergeStored(ctx context.Context, keys []any) error {
	type stored struct {
		At time.Time
		usage.Denials
	}
	rows, _ := u.tx.Query(ctx, selectDenials, keys...)
	found, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[stored])
	for _, n := range found {
		u.denied.add(n.At, &n.Denials)
	}
	return err
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
