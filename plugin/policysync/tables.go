package policysync

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// table describes one of the tables of a snapshot.
type table struct {
	name    string // in the schema rate_limiter, and in faults
	kind    string // of its rows in the table of changes
	columns string // in the order of read
	key     string // the column of the key
	numeric bool   // the key is a number
	where   string // which rows are of interest
	read    func(*record, *policy.Rows)
}

// tables lists the tables in the order of ofTiers to ofOverrides.
var tables = [...]table{
	{
		name: "tiers", kind: "tier", key: "name", where: "true", columns: "name",
		read: func(r *record, rows *policy.Rows) { rows.Tiers = append(rows.Tiers, policy.TierRow{Name: r.text()}) },
	},
	{
		name: "tenants", kind: "tenant", key: "id", where: "true", columns: "id, tier, time_zone",
		read: func(r *record, rows *policy.Rows) {
			rows.Tenants = append(rows.Tenants, policy.TenantRow{ID: r.name(), Tier: r.text(), TimeZone: r.text()})
		},
	},
	{
		name: "policies", kind: "policy", key: "id", numeric: true, where: "slot = 'active'",
		columns: policyColumns(),
		read:    readPolicy,
	},
	{
		name: "overrides", kind: "override", key: "id", numeric: true, where: "(expires_at IS NULL OR expires_at > now())",
		columns: `id, kind, tenant, "user", endpoint, credential, ip, policy, "limit", window_size, burst, factor,
			reason, author, expires_at, permanent, source, public_note`,
		read: readOverride,
	},
}

const (
	ofTiers = iota
	ofTenants
	ofPolicies
	ofOverrides
)

// columnCount returns the number of the table's columns.
func (t *table) columnCount() int { return strings.Count(t.columns, ",") + 1 }

// copySQL returns the statement that reads the whole table as a binary COPY.
func (t *table) copySQL() string {
	return fmt.Sprintf("COPY (SELECT %s FROM rate_limiter.%s WHERE %s) TO STDOUT (FORMAT binary)",
		t.columns, t.name, t.where)
}

// selectSQL returns the statement that reads the rows of a list of keys.
func (t *table) selectSQL() string {
	return fmt.Sprintf("SELECT %s FROM rate_limiter.%s WHERE %s AND %s = ANY($1)", t.columns, t.name, t.where, t.key)
}

func readOverride(r *record, rows *policy.Rows) {
	o := policy.Override{
		ID: r.number(), Kind: r.text(),
		Tenant: r.name(), User: r.name(), Endpoint: r.text(), Credential: r.name(), IP: r.name(),
		Policy: r.text(), Limit: r.number(), WindowSize: r.number(), Burst: r.number(), Factor: r.number(),
		Reason: r.name(), Author: r.text(),
	}
	end := r.instant()
	if permanent := r.boolean(); end == 0 && !permanent {
		end = -1 // an override without an end must be marked permanent: package policy reports it as a fault
	}
	o.ExpiresAt, o.Source, o.PublicNote = end, r.text(), r.text()
	rows.Overrides = append(rows.Overrides, o)
}

// record reads the fields of one row one after the other. A NULL becomes the zero value; package policy checks whether
// that is valid. An error concerns the columns, not a row.
type record struct {
	fields [][]byte
	texts  internedTexts
	err    error
}

var errColumns = errors.New("the columns of the table are not those of this version: is it migrated?")

func (r *record) next() []byte {
	if len(r.fields) == 0 {
		r.err = errColumns
		return nil
	}
	field := r.fields[0]
	r.fields = r.fields[1:]
	return field
}

// maxText bounds the kept part of a text, in bytes. Package policy reports a fault for longer texts.
const maxText = 4096

// text reads a text that many rows may share, and keeps one copy of it.
func (r *record) text() string { return r.texts.intern(r.clipped()) }

// name reads a text that few rows share.
func (r *record) name() string { return string(r.clipped()) }

func (r *record) clipped() []byte {
	field := r.next()
	if len(field) <= maxText {
		return field
	}
	field = field[:maxText]
	for len(field) > maxText-utf8.UTFMax && !utf8.Valid(field) {
		field = field[:len(field)-1]
	}
	return field
}

func (r *record) number() int64 {
	n, _ := r.integer()
	return n
}

func (r *record) optional() *int64 {
	n, ok := r.integer()
	if !ok {
		return nil
	}
	return &n
}

// integer reads a bigint, and reports false for NULL.
func (r *record) integer() (int64, bool) {
	switch field := r.next(); {
	case field == nil:
		return 0, false
	case len(field) != 8:
		r.err = errColumns
		return 0, false
	default:
		return int64(binary.BigEndian.Uint64(field)), true
	}
}

func (r *record) boolean() bool {
	field := r.next()
	if field != nil && len(field) != 1 {
		r.err = errColumns
	}
	return len(field) == 1 && field[0] != 0
}

// epoch is the epoch of Postgres, 2000-01-01 UTC.
const epoch limit.Micros = 946_684_800_000_000

// instant reads a timestamp with time zone. It returns 0 for NULL, and the largest instant for infinity.
func (r *record) instant() limit.Micros {
	n, ok := r.integer()
	switch {
	case !ok:
		return 0
	case n > math.MaxInt64-int64(epoch):
		return math.MaxInt64
	}
	return limit.Micros(n) + epoch
}

// finish returns an error if the fields were not those of the columns.
func (r *record) finish() error {
	if len(r.fields) > 0 {
		return errColumns
	}
	return r.err
}

// internedTexts keeps one copy of texts that many rows share.
type internedTexts map[string]string

// maxTexts bounds the number of interned texts. Few texts are shared by many rows.
const maxTexts = 8192

func (t internedTexts) intern(text []byte) string {
	if shared, ok := t[string(text)]; ok {
		return shared
	}
	s := string(text)
	if len(t) < maxTexts {
		t[s] = s
	}
	return s
}
