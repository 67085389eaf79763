package api

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// warningTimeout bounds how long a write waits for its warnings.
const warningTimeout = 5 * time.Second

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

func (s *Server) overrideWarnings(ctx context.Context, o rows.Override) ([]string, error) {
	return s.Rows.OverrideWarnings(ctx, s.configPlan(), s.IsConsumer, o)
}

// warnOfWrite returns the warnings about a write. It returns no error, because the write has succeeded.
func (s *Server) warnOfWrite(ctx context.Context, find func(context.Context) ([]string, error)) []string {
	ctx, cancel := context.WithTimeout(ctx, warningTimeout)
	defer cancel()
	warnings, err := find(ctx)
	if err != nil {
		s.Log.Warn("cannot check a write for mistakes", "error", err)
	}
	return warnings
}

// Force allows a policy that would deny most requests.
type Force struct {
	Force bool `query:"force" doc:"Write a policy that all tenants share even if it is below their recent usage, or below what a single tenant may use."`
}

// lockOut returns the fault of policies that would lock tenants out without force, or nil.
func (f Force) lockOut(r rows.Review) *huma.ErrorDetail {
	if len(r.LockOuts) == 0 || f.Force {
		return nil
	}
	texts := mapped(r.LockOuts, func(l rows.LockOut) string { return l.Key.String() + ": " + l.Why })
	return forceRequired("%s", strings.Join(texts, "; "))
}

// review returns the warnings about a policy that is about to be written. Without force it denies a policy that all
// tenants share and that is below their recent usage, or below what one tenant alone may use. It checks both, because
// usage is low in a quiet hour.
func (s *Server) review(ctx context.Context, force bool, p rows.Policy) ([]string, error) {
	if p.MayDenyAll() && !force {
		used, isKnown, err := s.usedLately(ctx, p)
		if err != nil {
			return nil, err
		}
		if isKnown && used > capacity(p) {
			return nil, unprocessable(forceRequired("all tenants together recently used %s, which is more than this allows",
				schema.Amount(used, p.Unit)))
		}
	}
	r, err := s.Rows.Review(ctx, s.configPlan(), "", p)
	if err == nil && len(r.LockOuts) > 0 && !force {
		err = unprocessable(forceRequired("%s", r.LockOuts[0].Why))
	}
	return r.Warnings, err
}

// approval returns what denies a change of several policies without force if one of them would lock tenants out. It
// sets the warnings about a change that it accepts.
func (s *Server) approval(f Force, warnings *[]string) rows.Approval {
	return rows.Approval{Config: s.configPlan(), Accept: func(r rows.Review) error {
		if why := f.lockOut(r); why != nil {
			return unprocessable(why)
		}
		*warnings = r.Warnings
		return nil
	}}
}

func forceRequired(format string, args ...any) *huma.ErrorDetail {
	return fault("query.force", "must be true for this policy: "+fmt.Sprintf(format, args...), nil)
}

// capacity returns how many tokens the bucket of a policy holds.
func capacity(p rows.Policy) int64 {
	compiled, err := compileGlobal(p)
	if err != nil {
		return p.Limit.Limit
	}
	return compiled.Limit.Capacity()
}

// usedLately returns how many tokens are missing from the bucket of the current policy with the same key. It reports
// false if there is none, or if its bucket cannot be read.
func (s *Server) usedLately(ctx context.Context, p rows.Policy) (int64, bool, error) {
	if s.Buckets == nil || (p.Scope == policy.Endpoint.String() && p.Endpoint == "") {
		return 0, false, nil // or it has a bucket per route, and the routes are unknown here
	}
	current, err := s.Rows.Policy(ctx, p.Key())
	if rows.IsMissing(err) || (err == nil && current.Scope != p.Scope) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	compiled, err := compileGlobal(current)
	if err != nil {
		return 0, false, fmt.Errorf("compile %s: %w", current.Key(), err)
	}
	key := policy.Key{Namespace: current.Namespace, Policy: current.Name, Group: policy.ByAll, Endpoint: current.Endpoint}
	if compiled.Scope == policy.Endpoint {
		key.Group, key.GroupID, key.Endpoint = policy.ByEndpoint, current.Endpoint, ""
	}
	statuses := make([]decision.Status, 1)
	err = s.OperatorBuckets.Peek(ctx, []policy.Bound{{Policy: compiled, Key: key}}, statuses)
	if err != nil || statuses[0].Failure != decision.NoFailure {
		s.Log.Warn("reading the recent usage of a policy failed", "policy", current.Key().String(), "error", err)
		return 0, false, nil
	}
	return compiled.Limit.Capacity() - statuses[0].Remaining, true, nil
}

// compileGlobal compiles a policy that all tenants share.
func compileGlobal(p rows.Policy) (*policy.Policy, error) {
	config := schema.Config{
		Namespace: p.Namespace,
		Global:    schema.Global{Limits: []schema.Limit{p.Limit}},
	}.WithDefaults()
	plan, err := resolve.FromConfig(config)
	if err != nil {
		return nil, err
	}
	return plan.Policies()[0], nil
}
