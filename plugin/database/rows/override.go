package rows

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Override is an override as the database has it. In a write, an absent Reason is the change's, an absent Author its
// actor, and an absent Source commercial.
type Override struct {
	// The database's id, which names it.
	ID int64 `json:"id,omitempty"`

	schema.Override

	State     string    `json:"state,omitempty"`     // when it was read: StateScheduled, StateInForce or StateEnded, by the database's clock
	CreatedAt time.Time `json:"created_at,omitzero"` // the database's
	Revision  int64     `json:"revision,omitempty"`  // how often it was written, from 1
}

// States of an override.
const (
	StateScheduled = "scheduled" // it has not begun
	StateInForce   = "in_force"
	StateEnded     = "ended" // it has expired, and its row is still there or in the history
)

// EndedOverride is one of the past.
type EndedOverride struct {
	Override
	EndedAt   time.Time `json:"ended_at,omitzero"` // when its row was deleted; it had no effect after ExpiresAt
	EndedBy   string    `json:"ended_by,omitempty"`
	EndReason string    `json:"end_reason,omitempty"`
}

// String names the override as people do.
func (o Override) String() string {
	text := "override"
	if o.ID != 0 {
		text = fmt.Sprint(text, " ", o.ID)
	}
	if text += ": " + o.Kind; o.Amount != 0 {
		text += fmt.Sprint(" of ", o.Amount)
	}
	if subject := o.Subject(); subject != "" {
		text += ", " + subject
	}
	if o.Policy != "" {
		text += ", policy " + o.Policy
	}
	return text
}

// OverrideFilter selects overrides. Each field that is not empty must be met; the zero value selects all that have not
// ended.
type OverrideFilter struct {
	Tenant  string `query:"tenant"  maxLength:"128" doc:"Only overrides of this tenant." example:"acme"`
	General bool   `query:"general"                 doc:"Only overrides that name no org."`

	OverrideMatch

	After int64 // only overrides of a larger ID: where the last page ended
	Max   int   // at most so many; 0: all
}

// OverrideMatch is the part of an OverrideFilter that selects overrides of one tenant too. The state is by the clock of
// the database.
type OverrideMatch struct {
	User       string `query:"user"       maxLength:"128"  doc:"Only overrides of this user."`
	Policy     string `query:"policy"     maxLength:"64"   doc:"Only overrides that name this policy."`
	Credential string `query:"credential" maxLength:"128"  doc:"Only overrides of this credential."`
	IP         string `query:"ip"         maxLength:"64"   doc:"Only overrides of exactly this address or network."`
	Tag        string `query:"tag"        maxLength:"128"  doc:"Only exemptions of this tag of consumers."`
	Endpoint   string `query:"endpoint"   maxLength:"1024" doc:"Only overrides of this endpoint, as written in the override; the names of parameters do not matter."`
	Kind       string `query:"kind"                        doc:"Only overrides of this kind."   enum:"custom_limit,multiplier,ban,exempt,topup"`
	Source     string `query:"source"                      doc:"Only overrides of this source." enum:"commercial,detector,scheduled"`
	State      string `query:"state"                       doc:"Only those that have not begun, are in force, or have expired and are not in the history yet." enum:"scheduled,in_force,ended"`
	Expired    bool   `query:"expired"                     doc:"Include overrides that have expired and are not in the history yet."`
}

const ownOverrideColumns = "id, created_at, revision, "

// stateColumn is the state of a row of the overrides. All rows of one statement have it at the same instant.
const stateColumn = `CASE WHEN expires_at <= statement_timestamp() THEN '` + StateEnded + `'
	WHEN starts_at > statement_timestamp() THEN '` + StateScheduled + `' ELSE '` + StateInForce + `' END`

var selectEnded = "SELECT '" + StateEnded + "' AS state, ended_at, ended_by, end_reason, " + ownOverrideColumns +
	read(columnsOf(schema.Fields[schema.Override]())) + " FROM rate_limiter.override_history"

func (f OverrideFilter) where() *where {
	var w where
	w.equal("tenant", f.Tenant)
	w.equal(`"user"`, f.User)
	w.equal("credential", f.Credential)
	w.equal("ip", f.IP)
	w.equal("tag", f.Tag)
	w.equal("kind", f.Kind)
	w.equal("source", f.Source)
	w.equal("policy", f.Policy)
	w.endpoint(f.Endpoint)
	if f.General {
		w.add("tenant = %s", "")
	}
	given(&w, "id > %s", f.After)
	switch {
	case f.State != "":
		w.add(stateColumn+" = %s", f.State)
	case !f.Expired:
		w.add(stateColumn+" <> %s", StateEnded)
	}
	return &w
}

// Overrides returns the overrides that a filter selects, in the order of their IDs.
func (s *DB) Overrides(ctx context.Context, f OverrideFilter) ([]Override, error) {
	w := f.where()
	return readAll[Override](ctx, s.pool, "list overrides", overrideTable.selects+w.String()+" ORDER BY id"+limitTo(f.Max),
		w.args...)
}

// EndedOverrides returns the ended overrides that a filter selects, in the order of their IDs.
func (s *DB) EndedOverrides(ctx context.Context, f OverrideFilter) ([]EndedOverride, error) {
	f.Expired = true
	w := f.where()
	return readAll[EndedOverride](ctx, s.pool, "list ended overrides",
		selectEnded+w.String()+" ORDER BY id"+limitTo(f.Max), w.args...)
}

// OverridesByTenant returns how many overrides each tenant has that have not ended.
func (s *DB) OverridesByTenant(ctx context.Context) (map[string]int64, error) {
	type count struct {
		Tenant string
		Count  int64
	}
	list, err := readAll[count](ctx, s.pool, "count overrides", `SELECT tenant, count(*) FROM rate_limiter.overrides
		WHERE tenant <> '' AND (expires_at IS NULL OR expires_at > clock_timestamp()) GROUP BY tenant`)
	counts := map[string]int64{}
	for _, c := range list {
		counts[c.Tenant] = c.Count
	}
	return counts, err
}

func (o Override) rowKey() any     { return o.ID }
func (o Override) revision() int64 { return o.Revision }
func (Override) table() any        { return overrideTable }

// AddOverride adds an override, and returns the row and the version in which it is in force. When there is one of its
// kind, source and start for the same subject and policy it is a ConflictError; one that has expired makes room.
func (s *DB) AddOverride(ctx context.Context, c Change, o Override) (Override, int64, error) {
	return s.addOverride(ctx, c, o, func(_ querier, o Override) (Override, error) { return o, nil })
}

// addOverride adds an override as complete makes it from what is there when it is written.
func (s *DB) addOverride(
	ctx context.Context, c Change, o Override, complete func(querier, Override) (Override, error),
) (Override, int64, error) {
	o = o.completed(c)
	if err := o.check(); err != nil {
		return Override{}, 0, err
	}
	return write(ctx, s, "add "+o.String(), c, func(tx pgx.Tx) (Override, error) {
		o, err := complete(tx, o)
		if err != nil {
			return Override{}, err
		}
		row, err := encode([]Override{o})
		if err != nil {
			return Override{}, err
		}
		if _, err := tx.Exec(ctx, endExpiredOverrides, row); err != nil {
			return Override{}, err
		}
		if err := checkVacant(ctx, tx, o, row); err != nil {
			return Override{}, err
		}
		var id int64
		if err := tx.QueryRow(ctx, overrideTable.inserts+" RETURNING id", row).Scan(&id); err != nil {
			return Override{}, err
		}
		return overrideTable.byKey(fmt.Sprint("override ", id), id)(ctx, tx)
	})
}

// CheckNew returns the error with which AddOverride would deny an override now: it has ended, or its place is taken.
func (s *DB) CheckNew(ctx context.Context, o Override) error {
	o = o.completed(Change{})
	row, err := encode([]Override{o})
	if err == nil {
		err = checkVacant(ctx, s.pool, o, row)
	}
	if err == nil && !o.Permanent {
		var now time.Time
		if now, err = readClock(ctx, s.pool); err == nil && !o.ExpiresAt.After(now) {
			err = &InvalidError{Field: "expires_at", Problem: expiryProblem}
		}
	}
	return fail("check "+o.String(), err)
}

// completed returns an override with what its absent fields stand for in a write.
func (o Override) completed(c Change) Override {
	o.Reason, o.Author = cmp.Or(o.Reason, c.Reason), cmp.Or(o.Author, c.Actor)
	o.Source, o.IP = cmp.Or(o.Source, o.OwnSource()), canonicalIP(o.IP)
	return o
}

// check returns what is wrong with o, as every way to write an override says it.
func (o Override) check() error { return invalid("", policy.OverrideFaults(o.Override)) }

// checkVacant returns a ConflictError that names the override whose place a new one would take.
func checkVacant(ctx context.Context, q querier, o Override, row []byte) error {
	found, err := scalars[int64](ctx, q, sameSubject, row)
	if err != nil || len(found) == 0 {
		return err
	}
	start := ""
	if !o.StartsAt.IsZero() {
		start = ", and starts at the same time"
	}
	conflict := conflicts["overrides_one_per_subject"]
	conflict.Problem = fmt.Sprintf(
		"override %d is of this kind for the same subject and policy%s: update it or end it first", found[0], start)
	return &conflict
}

// canonicalIP returns the one spelling of an address or prefix. It returns other texts as they are, and check finds
// them invalid.
func canonicalIP(text string) string {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		if prefix.Addr().Is4() && prefix.IsSingleIP() {
			return prefix.Addr().String()
		}
		return prefix.Masked().String()
	}
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		return addr.Unmap().String()
	}
	return text
}

const (
	// endExpiredOverrides ends the expired overrides whose places new ones take.
	endExpiredOverrides = `DELETE FROM rate_limiter.overrides o
		USING jsonb_populate_recordset(NULL::rate_limiter.overrides, $1) n
		WHERE o.expires_at <= clock_timestamp() AND ` + samePlace

	// sameSubject finds the override whose place a new one would take.
	sameSubject = `SELECT o.id FROM rate_limiter.overrides o, jsonb_populate_recordset(NULL::rate_limiter.overrides, $1) n
		WHERE (o.expires_at IS NULL OR o.expires_at > clock_timestamp()) AND ` + samePlace

	// samePlace is that of the index overrides_one_per_subject. Top-ups add up: none takes the place of another.
	samePlace = `o.kind <> 'topup' AND o.source = n.source AND o.starts_at IS NOT DISTINCT FROM n.starts_at AND ` + sameTarget

	sameTarget = `o.kind = n.kind AND o.tenant = coalesce(n.tenant, '') AND o."user" = coalesce(n."user", '')
			AND rate_limiter.canonical_endpoint(o.endpoint) = rate_limiter.canonical_endpoint(coalesce(n.endpoint, ''))
			AND o.credential = coalesce(n.credential, '') AND o.ip = coalesce(n.ip, '')
			AND o.tag = coalesce(n.tag, '') AND o.policy = coalesce(n.policy, '')`
)

// PutOverride changes the override of o.ID, which keeps its id and author, or returns a NotFoundError: its numbers, its
// note, its reason, its end, and until it begins its start. What it is about must stay. One that has ended does not
// change: that is a ConflictError without a revision. o.Revision must be that of the row, or AnyRevision or Present. It
// returns the row after the write, and the version in which it is in force.
func (s *DB) PutOverride(ctx context.Context, c Change, o Override) (Override, int64, error) {
	what, wanted := fmt.Sprint("override ", o.ID), o.Revision
	if wanted == AnyRevision {
		wanted = Present
	}
	return overrideTable.put(ctx, s, c, what, wanted, overrideTable.byKey(what, o.ID),
		func(current Override) (Override, error) {
			o.Reason, o.Author = cmp.Or(o.Reason, c.Reason), current.Author
			o.Source, o.IP = o.OwnSource(), canonicalIP(o.IP)
			return o, cmp.Or(o.check(), current.changesTo(o))
		})
}

// hasNotEnded returns why an override that was put has no effect.
func (o Override) hasNotEnded() error {
	if o.State == StateEnded {
		return &InvalidError{fmt.Sprint("override ", o.ID), "expires_at", expiryProblem}
	}
	return nil
}

// changesTo returns why an override cannot become another one.
func (o Override) changesTo(next Override) error {
	what := fmt.Sprint("override ", o.ID)
	switch {
	case o.State == StateEnded:
		return &ConflictError{What: what, Problem: "it has ended: add another override"}
	case o.Kind == schema.KindTopUp:
		return &InvalidError{what, "kind", "is topup, which does not change: end it, or add another"}
	case o.Source == schema.SourceDetector:
		return &InvalidError{what, "source", "is detector, whose penalties do not change: end it, or add another override"}
	}
	err := mustStay(what, "end the override, and add another", overrideTable.fixed,
		o.Override, next.Override)
	if err != nil {
		return err
	}
	switch {
	case o.State == StateScheduled || o.StartsAt.Equal(next.StartsAt):
		return nil
	case o.StartsAt.IsZero():
		return &InvalidError{what, "starts_at", "must be left out: the override has begun"}
	}
	return &InvalidError{what, "starts_at", fmt.Sprintf("must stay %s: the override has begun",
		o.StartsAt.UTC().Format(time.RFC3339Nano))}
}
