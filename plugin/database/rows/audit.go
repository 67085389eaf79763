package rows

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// AuditKinds lists what entries of the audit are about.
var AuditKinds = []string{
	"tier", "tenant", "policy", "override", "cost", "price", "candidate", "candidate_policy", "candidate_tenant",
	"token", "webhook", "action",
}

// AuditKindsText returns AuditKinds as descriptions list them: "tier, tenant or action".
func AuditKindsText() string {
	last := len(AuditKinds) - 1
	return strings.Join(AuditKinds[:last], ", ") + " or " + AuditKinds[last]
}

// AuditEntry records one change of one row, or one action.
type AuditEntry struct {
	ID        int64     `json:"id"` // grows with time
	Version   int64     `json:"version"`
	At        time.Time `json:"at"`
	Actor     string    `json:"actor"`
	Login     string    `json:"login"` // the database user, whatever the actor is
	Reason    string    `json:"reason"`
	Kind      string    `json:"kind"`      // one of AuditKinds; action: see Action
	Operation string    `json:"operation"` // insert, update or delete; secret: a webhook has a new one; an action's own
	Key       string    `json:"key"`       // the name of a tier or token, a tenant's id, the id of another row
	Tenant    string    `json:"tenant,omitempty"`

	// The row by its columns, with the factor of a multiplier as a decimal: 1.5. An action has its Details in After.
	Before json.RawMessage `json:"before,omitempty"` // nil for an insert
	After  json.RawMessage `json:"after,omitempty"`  // nil for a delete
}

// AuditFilter selects audit entries. Every field that is set must match; the zero value selects all.
type AuditFilter struct {
	Tenant string    `query:"tenant" maxLength:"128"  doc:"Only what is about this tenant." example:"acme"`
	Kind   string    // one of AuditKinds; a kind that no entry has is valid
	Key    string    `query:"key"    maxLength:"1024" value:"row" doc:"Only changes of this row: a tier's name, a tenant's id, the id of a policy or an override."`
	Actor  string    `query:"actor"  maxLength:"256"  doc:"Only changes by this actor; the actor of a token is token: and its name, of a person whom an identity provider has signed in oidc: and the name." example:"token:ann"`
	Since  time.Time `query:"since"                   doc:"Only changes at or after this time."`
	Until  time.Time `query:"until"                   doc:"Only changes before this time."`

	Before int64 // only entries of a smaller ID: the last one of the page before
	Max    int   // at most so many; 0: all
}

// auditColumns lists the columns of an entry. The audit stores rows as in their tables, with factors in thousandths.
var auditColumns = `id, version, at, actor, login, reason, kind, operation, key, tenant, ` + inFactors(
	"before",
) + ", " + inFactors("after")

// inFactors returns the column of a row in the audit, with its factor as a decimal.
func inFactors(row string) string {
	return fmt.Sprintf(`CASE WHEN kind = 'override' AND jsonb_typeof(%[1]s -> 'factor') = 'number'
		THEN jsonb_set(%[1]s, '{factor}', to_jsonb(trim_scale((%[1]s ->> 'factor')::numeric / 1000)))
		ELSE %[1]s END AS %[1]s`, row)
}

// Audit returns the entries that a filter selects, newest first.
func (s *DB) Audit(ctx context.Context, f AuditFilter) ([]AuditEntry, error) {
	var w where
	w.equal("tenant", f.Tenant)
	w.equal("kind", f.Kind)
	w.equal("key", f.Key)
	w.equal("actor", f.Actor)
	given(&w, "at >= %s", f.Since)
	given(&w, "at < %s", f.Until)
	given(&w, "id < %s", f.Before)
	return readAll[AuditEntry](ctx, s.pool, "read the audit",
		"SELECT "+auditColumns+" FROM rate_limiter.audit"+w.String()+` ORDER BY id DESC`+limitTo(f.Max),
		w.plannedArgs()...)
}
