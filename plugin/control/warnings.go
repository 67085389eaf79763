package control

import (
	"context"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// Warnings are about parts of a write that may be mistakes, and about nodes that could not be read after it.
type Warnings struct {
	Warnings []string `json:"warnings,omitempty" doc:"The write has succeeded. Likely mistakes: the name of a tier or a policy that neither the plugin's config nor the database has, a namespace that is not the config's, or a limit of one tenant that is above one of all tenants. Also, that the nodes could not be read after a write with wait."`
}

// warningTimeout bounds how long a write waits for its warnings.
const warningTimeout = time.Second

// configPlan returns the plugin's config without the rows of the database, or nil if the process has none.
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

// warnOfPolicyName warns if no policy has the name; "" names none.
func (s *Server) warnOfPolicyName(ctx context.Context, name string) Warnings {
	return s.warnOfName(ctx, name, s.Store.PolicyWarning)
}

// warnOfTierName warns if no tier has the name; "" names none.
func (s *Server) warnOfTierName(ctx context.Context, name string) Warnings {
	return s.warnOfName(ctx, name, s.Store.TierWarning)
}

// warnOfName returns the warning of find about a name. It returns no error, because the write has succeeded.
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
