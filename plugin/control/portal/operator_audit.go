package portal

import (
	"encoding/json"
	"fmt"
	"time"
)

// auditEntry is a change with the states before and after it.
type auditEntry struct {
	ID        int64           `json:"id"`
	Version   int64           `json:"version"`
	At        time.Time       `json:"at"`
	Actor     string          `json:"actor"`
	Reason    string          `json:"reason"`
	Kind      string          `json:"kind"`
	Operation string          `json:"operation"`
	Key       string          `json:"key"`
	Tenant    string          `json:"tenant"`
	Before    json.RawMessage `json:"before"`
	After     json.RawMessage `json:"after"`

	Changes []fieldChange `json:"-"`
}

// auditFilters are the filters of the audit.
var auditFilters = []string{"tenant", "kind", "key", "actor"}

// serveAudit shows changes, newest first, each with the fields that it changed.
func serveAudit(v *visit) error {
	filters := v.filters(auditFilters...)
	var found struct {
		Items []auditEntry `json:"items"`
		Next  string       `json:"next_cursor"`
	}
	if err := v.get("/v1/ratelimit/audit", v.withPage(filters), &found); err != nil {
		return err
	}
	for i := range found.Items {
		e := &found.Items[i]
		var err error
		if e.Changes, err = diffJSON(e.Before, e.After); err != nil {
			return fmt.Errorf("compare audit entry %d: %w", e.ID, err)
		}
	}
	return v.render("operator_audit", "Audit", map[string]any{
		"Filters": filters, "Items": found.Items, "Next": nextPage(v.r.URL.Path, filters, found.Next),
	})
}
