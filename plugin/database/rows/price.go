package rows

import (
	"cmp"
	"context"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Price is what calls of a model cost from an instant on, as the database has it.
type Price struct {
	ID int64 `json:"id,omitempty" doc:"Assigned by the database; a write ignores it."`

	schema.DatedPrice

	State    string `json:"state,omitempty"    doc:"By the clock of the database. A write ignores it." enum:"scheduled,in_force,ended"`
	Revision int64  `json:"revision,omitempty" doc:"How often it was written, from 1. A write ignores it and uses If-Match."`
}

func (p Price) rowKey() any     { return p.ID }
func (p Price) revision() int64 { return p.Revision }
func (Price) table() any        { return priceTable }

// String names the price by its model and its start.
func (p Price) String() string {
	text := "price of " + p.Model
	if !p.StartsAt.IsZero() {
		text += " from " + p.StartsAt.UTC().Format(time.RFC3339Nano)
	}
	if namespace := cmp.Or(p.Namespace, defaultNamespace); namespace != defaultNamespace {
		text += " in namespace " + namespace
	}
	return text
}

// priceState is the state of a row of the prices. All rows of one statement have it at the same instant.
const priceState = `CASE WHEN starts_at > statement_timestamp() THEN '` + StateScheduled + `'
	WHEN EXISTS (SELECT FROM rate_limiter.prices next
		WHERE (next.namespace, next.model) = (prices.namespace, prices.model)
		AND next.starts_at > prices.starts_at AND next.starts_at <= statement_timestamp()) THEN '` + StateEnded + `'
	ELSE '` + StateInForce + `' END`

// PriceFilter selects prices. The zero value selects all.
type PriceFilter struct {
	Namespace string `query:"namespace" maxLength:"64"  doc:"Only prices of this namespace."`
	Model     string `query:"model"     maxLength:"128" doc:"Only prices with exactly this pattern of models." example:"gpt-4o*"`
	State     string `query:"state"     doc:"Only those that have not begun, are in force, or were followed by another one." enum:"scheduled,in_force,ended"`

	After int64 // only prices with a larger ID: the last one of the page before
	Max   int   // at most so many; 0: all
}

// Prices returns the prices that a filter selects, in the order of their IDs.
func (s *DB) Prices(ctx context.Context, f PriceFilter) ([]Price, error) {
	return prices(ctx, s.pool, f)
}

func prices(ctx context.Context, q querier, f PriceFilter) ([]Price, error) {
	var w where
	w.equal("namespace", f.Namespace)
	w.equal("model", f.Model)
	w.equal(priceState, f.State)
	given(&w, "id > %s", f.After)
	return readAll[Price](ctx, q, "list prices", priceTable.selects+w.String()+" ORDER BY id"+limitTo(f.Max), w.args...)
}

// ReplacedPrice returns the row that PutPrice would write, or a NotFoundError if it would add one.
func (s *DB) ReplacedPrice(ctx context.Context, p Price) (Price, error) {
	found, err := replacedPrice(ctx, s.pool, p)
	return found, fail("read the "+p.String(), err)
}

func replacedPrice(ctx context.Context, q querier, p Price) (Price, error) {
	var w where
	w.equal("namespace", cmp.Or(p.Namespace, defaultNamespace))
	w.equal("model", p.Model)
	if p.StartsAt.IsZero() {
		w.equal(priceState, StateInForce)
		w.add("prompt = %s", int64(p.Prompt))
		w.add("completion = %s", int64(p.Completion))
	} else {
		w.add("starts_at = %s", p.StartsAt)
	}
	return one[Price](ctx, q, "the "+p.String(), priceTable.selects+w.String(), w.args...)
}

// PutPrice sets what calls of a model cost from an instant on, in place of the price with the same start. Without a
// start the price begins now, by the database's clock, unless calls cost that already. PutPrice returns the row after
// the write, and the version that has it.
func (s *DB) PutPrice(ctx context.Context, c Change, p Price) (Price, int64, error) {
	p.Namespace, p.StartsAt = cmp.Or(p.Namespace, defaultNamespace), p.StartsAt.Truncate(time.Microsecond)
	find := func(ctx context.Context, q querier) (Price, error) {
		found, err := replacedPrice(ctx, q, p)
		switch {
		case err == nil:
			p.StartsAt = found.StartsAt
		case IsMissing(err) && p.StartsAt.IsZero():
			now, failed := readClock(ctx, q)
			p.StartsAt, err = now, cmp.Or(failed, err)
		}
		return found, err
	}
	return priceTable.put(ctx, s, c, "the "+p.String(), p.Revision, find, func(current Price) (Price, error) {
		p.ID = current.ID
		return p, invalid(p.String(), p.Faults())
	})
}

// DocumentPriceFaults returns what is wrong with a price of a document, where it must have a start.
func DocumentPriceFaults(p schema.DatedPrice) []schema.Fault {
	faults := p.Faults()
	if p.StartsAt.IsZero() {
		const missing = "is required in a document: without it the price would begin anew each time"
		faults = append(faults, schema.Fault{Path: "starts_at", Message: missing})
	}
	return faults
}

func (set Set) diffPrices(ctx context.Context, q querier, namespace string) (*RowDiff[Price], error) {
	return diffRows(set.Prices, set.Partial,
		func() ([]Price, error) { return prices(ctx, q, PriceFilter{Namespace: namespace}) },
		func(p *Price) error {
			p.Namespace, p.StartsAt = namespace, p.StartsAt.Truncate(time.Microsecond)
			return invalid(p.String(), DocumentPriceFaults(p.DatedPrice))
		},
		Price.String, func(before, after Price) (Price, bool) {
			after.ID, after.Revision, after.State = before.ID, before.Revision, before.State
			return after, before.ID == 0 || before.ModelPrice != after.ModelPrice
		})
}
