package control

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

// registerRecord adds what tells what was done and what the nodes do.
func (s *Server) registerRecord() {
	tags := []string{"record"}
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "list-audit", Method: http.MethodGet, Path: "/v1/ratelimit/audit",
		Summary: "List what was changed, by whom and why, the last first", Tags: tags,
	}, read), s.audit)
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "get-fleet", Method: http.MethodGet, Path: "/v1/ratelimit/fleet",
		Summary: "Tell which version each node enforces", Tags: tags,
	}, read), s.fleet)
}

type auditInput struct {
	Paging
	OfTenant
	Kind  string    `query:"kind" maxLength:"64" doc:"tier, tenant, policy, override, token or action." example:"policy"`
	Key   string    `query:"key" maxLength:"1024" doc:"Only the row of this key: a tier's name, a tenant's id, the id of a policy or an override."`
	Actor string    `query:"actor" maxLength:"256" doc:"Only what this one did; who holds a token is token: and its name." example:"token:ann"`
	Since time.Time `query:"since" doc:"Not before this instant."`
	Until time.Time `query:"until" doc:"Before this instant."`
}

type auditOutput struct{ Body Page[pgstore.AuditEntry] }

func (s *Server) audit(ctx context.Context, in *auditInput) (*auditOutput, error) {
	entries, next, err := s.Store.Audit(ctx, pgstore.AuditFilter{
		Tenant: in.tenant(), Kind: in.Kind, Key: in.Key, Actor: in.Actor, Since: in.Since, Until: in.Until,
		Before: in.after(), Max: in.Limit,
	})
	if err != nil {
		return nil, s.unread("read the audit", err)
	}
	out := &auditOutput{Page[pgstore.AuditEntry]{Items: entries}}
	if next > 0 {
		out.Body.NextCursor = cursor(next)
	}
	return out, nil
}

type fleetOutput struct{ Body pgstore.Fleet }

func (s *Server) fleet(ctx context.Context, _ *struct{}) (*fleetOutput, error) {
	fleet, err := s.Store.Fleet(ctx, liveWithin)
	if err != nil {
		return nil, s.unread("list the nodes", err)
	}
	return &fleetOutput{Body: fleet}, nil
}
