package api

import (
	"context"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const pricesPath = "/v1/ratelimit/prices"

// PriceWritten is a price after a write.
type PriceWritten struct {
	Price rows.Price `json:"price"`
	answers.Written
}

type listPricesInput struct {
	Paging[int64]
	rows.PriceFilter
}

func (s *Server) registerPrices() {
	r := &resource[*RowPath, rows.Price, rows.Price, PriceWritten]{
		place:    &place{s, pricesPath, "prices", readAccess, writeAccess},
		state:    func(p rows.Price) (string, int64) { return etag("price-", p.ID, p.Revision), p.Revision },
		location: func(p rows.Price) string { return fmt.Sprint(pricesPath, "/", p.ID) },
		show:     asItIs[rows.Price],
		answer:   func(p rows.Price, w answers.Written) PriceWritten { return PriceWritten{p, w} },
	}
	list(s, r.operation("list-prices", http.MethodGet, "",
		"List what models cost and from when on, ordered by id; the plugin's config may have others"), "list prices", r.show,
		func(p rows.Price) int64 { return p.ID },
		func(ctx context.Context, in *listPricesInput) ([]rows.Price, error) {
			in.After, in.Max = in.page()
			return s.Rows.Prices(ctx, in.PriceFilter)
		})
	put(r, r.operation("put-price", http.MethodPut, "",
		"Set what models cost from an instant on, in place of the price with the same namespace, model and starts_at\n"+
			"The price applies to requests that arrive from then on, by the clock of each node. Without starts_at it begins "+
			"now, beside those before it; if the same price is in force, nothing changes."), s.putPrice)
	get[getRow](r, r.operation("get-price", http.MethodGet, one, "Get a price"), "read a price")
	remove[deleteRow](r, r.operation("delete-price", http.MethodDelete, one,
		"Delete a price, so that the one before it is in force, or the plugin config's", conditional...), "delete a price")
}

type priceBody struct {
	rows.Price // a write ignores its id, state and revision

	Reason optionalReason `json:"reason,omitempty" maxLength:"1024" doc:"Why; recorded in the audit. Default: changed by the API."`
}

// TransformSchema describes the body.
func (*priceBody) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	describeFields(s, schema.Fields[schema.DatedPrice]())
	return s
}

func (b *priceBody) Resolve(huma.Context) []error { return faultsIn("body", b.Faults()) }

func (s *Server) putPrice(ctx context.Context, in *putInput[priceBody]) *write[rows.Price] {
	desired := rows.Price{DatedPrice: in.Body.DatedPrice}
	return &write[rows.Price]{
		action: "put a price",
		read:   func() (rows.Price, error) { return s.Rows.ReplacedPrice(ctx, desired) },
		isSame: func(current rows.Price) bool { return current.ModelPrice == desired.ModelPrice },
		write: func(_ rows.Price, revision int64) (d done[rows.Price], err error) {
			desired.Revision = revision
			return d.with(s.Rows.PutPrice(ctx, newChange(ctx, in.Body.Reason), desired))
		},
	}
}
