package portal

import (
	"time"
)

// denialPage is a page of recent denials.
type denialPage struct {
	Denials []denial `json:"denials"`
	Next    string   `json:"next"`
	Sampled bool     `json:"sampled"`

	Link string `json:"-"` // of the next page of the console; "": this is the last one
}

// denial counts denials of a tenant by one policy at about one time.
type denial struct {
	At         time.Time `json:"at"`
	Org        string    `json:"org"`
	Endpoint   string    `json:"endpoint"`
	Policy     string    `json:"policy"`
	Limit      int64     `json:"limit"`
	Window     string    `json:"window"`
	Scope      string    `json:"scope"`
	Reason     string    `json:"reason"`
	Shadow     bool      `json:"shadow"`
	Count      int64     `json:"count"`
	User       string    `json:"user"`
	RetryAfter int64     `json:"retry_after_seconds"`
}

// denialFilters are the filters of denials.
var denialFilters = []string{"tenant", "policy", "endpoint", "since"}

// denialsPath is the page of recent denials in the console.
const denialsPath = home + "denials"

// serveDenials shows recent denials. The first page is live.
func serveDenials(v *visit) error {
	filters := v.filters(denialFilters...)
	found, err := readDenials(v)
	why, err := unavailable(err)
	if err != nil {
		return err
	}
	live := ""
	if v.r.URL.Query().Get("cursor") == "" {
		live = livePath + "denials?" + filters.Encode()
	}
	return v.render("operator_denials", "Denials", map[string]any{
		"Filters": filters, "Found": found, "Live": live, "Unavailable": why,
	})
}

// pollDenials returns the first page of denials for the live part.
func pollDenials(v *visit) (any, error) { return readDenials(v) }

// readDenials returns a page of denials, whose link follows the last of its rows.
func readDenials(v *visit) (*denialPage, error) {
	found, filters := &denialPage{}, v.filters(denialFilters...)
	err := v.get("/v1/ratelimit/denials", v.withPage(filters), found)
	found.Link = nextPage(denialsPath, filters, found.Next)
	return found, err
}
