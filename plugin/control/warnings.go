package control

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// Warnings are about what was written as it was asked for and may not have been meant.
type Warnings struct {
	Warnings []string `json:"warnings,omitempty" doc:"Names that neither the plugin's config nor the database knows: they may be mistyped, or come later. Not told by a process without the config."`
}

// doubtTime bounds how long a write that was made is not answered for the sake of a warning.
const doubtTime = time.Second

// doubtPolicy warns of the name of a policy that nothing knows; "" names none.
func (s *Server) doubtPolicy(ctx context.Context, name string) Warnings {
	return s.doubt(ctx, name, func(ctx context.Context, config *policy.Plan) (bool, error) {
		if slices.ContainsFunc(config.Policies(), func(p *policy.Policy) bool { return p.Name == name }) {
			return true, nil
		}
		rows, err := s.Store.Policies(ctx, pgstore.PolicyFilter{Name: name, Max: 1})
		return len(rows) > 0, err
	}, fmt.Sprintf("no policy is named %q, in the plugin's config or in the database: this changes nothing until there is one", name))
}

// doubtTier warns of a tier that nothing knows; "" is none.
func (s *Server) doubtTier(ctx context.Context, name string) Warnings {
	return s.doubt(ctx, name, func(ctx context.Context, config *policy.Plan) (bool, error) {
		if config.Tier(name) == name {
			return true, nil
		}
		// What the nodes have not loaded yet is known, too.
		tiers, err := s.Store.Tiers(ctx)
		if err != nil || slices.ContainsFunc(tiers, func(t pgstore.Tier) bool { return t.Name == name }) {
			return true, err
		}
		rows, err := s.Store.Policies(ctx, pgstore.PolicyFilter{Tier: name, Max: 1})
		return len(rows) > 0, err
	}, fmt.Sprintf("no tier is named %q, in the plugin's config or in the database: the default tier applies until there is one", name))
}

// doubt warns of a name that is not known. The write has been made whatever comes of the question, so that has no error.
func (s *Server) doubt(ctx context.Context, name string, known func(context.Context, *policy.Plan) (bool, error), warning string) Warnings {
	if name == "" || s.Path == nil {
		return Warnings{}
	}
	config := s.Path.Policies.Load()
	if config == nil {
		return Warnings{}
	}
	ctx, cancel := context.WithTimeout(ctx, doubtTime)
	defer cancel()
	found, err := known(ctx, config)
	if err != nil {
		s.Log.Warn("it cannot be told whether a name is known", "error", err)
	}
	if found || err != nil {
		return Warnings{}
	}
	return Warnings{[]string{warning}}
}
