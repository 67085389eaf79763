package api

import (
	"context"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// Warnings are about parts of a write that may be mistakes, and about nodes that could not be read after it.
type Warnings struct {
	Warnings []string `json:"warnings,omitempty" doc:"The write has succeeded. Likely mistakes: an override of a tenant that was never seen, the name of a tier or a policy that neither the plugin's config nor the database has, a namespace that is not the config's, a limit of one tenant that is above one of all tenants, or one that cannot hold the cost of a request. Also, that the nodes could not be read after a write with wait."`
}

// warningTimeout bounds how long a write waits for its warnings.
const warningTimeout = time.Second

// configPlan returns the plugin's config without the rows of the database, or nil if the process has none.
func (s *Server) configPlan() *resolve.Plan {
	if s.Decider == nil {
		return nil
	}
	plan := s.Decider.Policies.Load()
	if plan == nil {
		return nil
	}
	return plan.With(nil)
}

// warnOfOverride returns what an operator should check of an override.
func (s *Server) warnOfOverride(ctx context.Context, o rows.Override) Warnings {
	return s.warnOfWrite(ctx, func(ctx context.Context) ([]string, error) {
		return s.Store.OverrideWarnings(ctx, s.configPlan(), s.IsConsumer, o)
	})
}

// warnOfOrg returns what an operator should check of an org.
func (s *Server) warnOfOrg(ctx context.Context, org rows.Tenant) Warnings {
	return s.warnOfWrite(ctx, func(ctx context.Context) ([]string, error) {
		return s.Store.TenantWarnings(ctx, s.configPlan(), org)
	})
}

// warnOfCost returns what an operator should check of a cost.
func (s *Server) warnOfCost(ctx context.Context, cost rows.Cost) Warnings {
	return s.warnOfWrite(ctx, func(ctx context.Context) ([]string, error) {
		return s.Store.CostWarnings(ctx, s.configPlan(), cost)
	})
}

// warnOfWrite returns the warnings about a write. It returns no error, because the write has succeeded.
func (s *Server) warnOfWrite(ctx context.Context, find func(context.Context) ([]string, error)) Warnings {
	ctx, cancel := context.WithTimeout(ctx, warningTimeout)
	defer cancel()
	warnings, err := find(ctx)
	if err != nil {
		s.Log.Warn("cannot check a write for mistakes", "error", err)
	}
	return Warnings{warnings}
}
