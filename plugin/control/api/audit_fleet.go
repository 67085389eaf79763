package api

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

func (s *Server) registerRecord() {
	at := &place{s, "/v1/ratelimit", "record", readAccess, writeAccess}
	list(s, at.operation("list-audit", http.MethodGet, "/audit",
		"List changes with their actor and reason, newest first"), "read the audit", asItIs[rows.AuditEntry],
		func(e rows.AuditEntry) int64 { return e.ID },
		func(ctx context.Context, in *auditInput) ([]rows.AuditEntry, error) {
			in.AuditFilter.Kind = string(in.Kind)
			in.Before, in.Max = in.page()
			return s.Rows.Audit(ctx, in.AuditFilter)
		})
	serve(s, at.operation("get-fleet", http.MethodGet, "/fleet",
		"Show which version each node enforces, now or after a time"), "list the nodes", s.fleet)
	once(s, at.operation("forget-node", http.MethodPost, "/fleet/forget",
		"Drop the last report of a silent node that no longer exists\n"+
			"A silent node keeps every version from counting as enforced, because it may still admit requests. "+
			"Make sure that its process has ended. The audit records the actor and the reason. A node that reports again is "+
			"listed again; a live node cannot be forgotten.", http.StatusNotFound, http.StatusConflict),
		"forget a node", s.forgetNode)
}

type auditInput struct {
	Paging[int64]
	Kind auditKind `query:"kind" maxLength:"64"`
	rows.AuditFilter
}

// auditKind is a kind of entries of the audit. A kind that no entry has is valid.
type auditKind string

// Schema implements [huma.SchemaProvider].
func (auditKind) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Type: huma.TypeString, Description: rows.AuditKindsText() + ".", Examples: []any{"policy"},
	}
}

type forgetInput struct {
	Once
	Body forgetBody
}

type forgetBody struct {
	Node   string `json:"node"   minLength:"1" maxLength:"256"  doc:"The node as listed in the fleet." example:"edge-1/7QX2MABC"`
	Reason reason `json:"reason"               maxLength:"1024" doc:"Why; recorded in the audit."      example:"the machine is gone"`
}

// Forgotten has the node that was dropped.
type Forgotten struct {
	Node rows.Node `json:"node" doc:"Its last report."`
}

func (s *Server) forgetNode(ctx context.Context, in *forgetInput) (Forgotten, rows.Change, error) {
	c := changeOnce(ctx, in.Once, in.Body.Reason, in.Body)
	node, err := s.Rows.ForgetNode(ctx, c, in.Body.Node)
	return Forgotten{node}, c, err
}

type fleetInput struct {
	Waiting
	Version    int64  `query:"version"     minimum:"0"    doc:"With wait: until all live nodes enforce this version. Absent: the current one."`
	LiveWithin string `query:"live_within" maxLength:"32" doc:"A node is live if its last report is not older. Default: 15s." example:"1m"`
}

func (in *fleetInput) Resolve(ctx huma.Context) []error {
	return append(in.Wait.Resolve(ctx), checkSpan("query.live_within", in.LiveWithin, 0)...)
}

func (s *Server) fleet(ctx context.Context, in *fleetInput) (answers.Fleet, error) {
	within := spanOr(in.LiveWithin, rows.LiveWithin)
	fleet, err := s.Rows.Fleet(ctx, within)
	if err == nil && in.wait() > 0 {
		fleet, err = s.awaitNodes(ctx, cmp.Or(in.Version, fleet.Version), in.wait(), within)
	}
	p99 := float64(fleet.DecisionP99()) / float64(time.Millisecond)
	return answers.Fleet{Fleet: fleet, Reach: fleet.Reach(fleet.Version), DecisionP99: p99}, err
}
