package control

import (
	"context"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// Warnings are about what was written and may not have been meant.
type Warnings struct {
	Warnings []string `json:"warnings,omitempty" doc:"What may not have been meant, and was written: the name of a tier or a policy that neither the plugin's config nor the database has, a namespace that is not the config's, or a limit of one tenant that is above one of all tenants."`
}

// warningTimeout bounds how long the answer to a write waits for a warning.
const warningTimeout = time.Second

// configPlan returns the plugin's config without the rows of the database; nil if the process has none.
func (s *Server) configPlan() *policy.Plan {
	if s.Path == nil {
		return nil
	}
	plan := s.Path.Policies.Load()
	if plan == nil {
		return nil
	}
	return plan.With(nil)
}

// warnOfPolicyName warns of the name of a policy that nothing has; "" names none.
func (s *Server) warnOfPolicyName(ctx context.Context, name string) Warnings {
	return s.warnOfName(ctx, name, s.Store.DoubtPolicy)
}

// warnOfTierName warns of a tier that nothing has; "" is none.
func (s *Server) warnOfTierName(ctx context.Context, name string) Warnings {
	return s.warnOfName(ctx, name, s.Store.DoubtTier)
}

// warnOfName warns of a name. It has no error, because the write has been made.
func (s *Server) warnOfName(
	ctx context.Context, name string, find func(context.Context, *policy.Plan, string) (string, error),
) Warnings {
	ctx, cancel := context.WithTimeout(ctx, warningTimeout)
	defer cancel()
	warning, err := find(ctx, s.configPlan(), name)
	if err != nil {
		s.Log.Warn("cannot check for a mistyped name", "error", err)
	}
	if warning == "" {
		return Warnings{}
	}
	return Warnings{[]string{warning}}
}
