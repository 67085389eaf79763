package api

import (
	"context"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

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
func (s *Server) warnOfOverride(ctx context.Context, o rows.Override) answers.Warnings {
	return s.warnOfWrite(ctx, func(ctx context.Context) ([]string, error) {
		return s.Rows.OverrideWarnings(ctx, s.configPlan(), s.IsConsumer, o)
	})
}

// warnOfOrg returns what an operator should check of an org.
func (s *Server) warnOfOrg(ctx context.Context, org rows.Tenant) answers.Warnings {
	return s.warnOfWrite(ctx, func(ctx context.Context) ([]string, error) {
		return s.Rows.TenantWarnings(ctx, s.configPlan(), org)
	})
}

// warnOfCost returns what an operator should check of a cost.
func (s *Server) warnOfCost(ctx context.Context, cost rows.Cost) answers.Warnings {
	return s.warnOfWrite(ctx, func(ctx context.Context) ([]string, error) {
		return s.Rows.CostWarnings(ctx, s.configPlan(), cost)
	})
}

// warnOfWrite returns the warnings about a write. It returns no error, because the write has succeeded.
func (s *Server) warnOfWrite(ctx context.Context, find func(context.Context) ([]string, error)) answers.Warnings {
	ctx, cancel := context.WithTimeout(ctx, warningTimeout)
	defer cancel()
	warnings, err := find(ctx)
	if err != nil {
		s.Log.Warn("cannot check a write for mistakes", "error", err)
	}
	return answers.Warnings{Warnings: warnings}
}
