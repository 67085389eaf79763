package api

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

type usageTotalInput struct {
	From time.Time `query:"from" doc:"The begin; absent: last before to."`
	To   time.Time `query:"to"   doc:"The end; absent: now."`
	Last string    `query:"last" maxLength:"32" doc:"Instead of from: how long before to (30m, 24h, 7d). Default: 24h." example:"7d"`
}

// Resolve implements [huma.Resolver].
func (in *usageTotalInput) Resolve(huma.Context) []error { return checkLast(in.Last, in.From) }

func (s *Server) usageTotal(ctx context.Context, in *usageTotalInput) (rows.UsageHistory, error) {
	now := s.Now()
	q := rows.UsageQuery{From: in.From, To: in.To, AllTenants: true}
	if q.To.IsZero() {
		q.To = now
	}
	if q.From.IsZero() {
		q.From = q.To.Add(-spanOr(in.Last, defaultTop))
	}
	q.Step = rows.StepFor(q.From, q.To, now)
	return s.Rows.Usage(ctx, q)
}

// OrgUsageQuery selects and orders the list of orgs with their usage.
type OrgUsageQuery struct {
	Last    string `query:"last"    default:"24h"      doc:"What was used in this time until now."                 maxLength:"32" example:"7d"`
	Sort    string `query:"sort"    default:"admitted" doc:"The order: numbers begin with the largest, names with a." enum:"org_id,tier,admitted,denied,nearest,overrides"`
	Reverse bool   `query:"reverse"                    doc:"The other way round."`
	Prefix  string `query:"prefix"  maxLength:"128"    doc:"Only orgs whose names begin with this."`
	Tier    string `query:"tier"    maxLength:"64"     doc:"Only orgs on this tier."`
	Limit   int    `query:"limit"   default:"100"      doc:"The maximum number of items."                          minimum:"1" maximum:"1000"`
}

// Resolve implements [huma.Resolver].
func (in *OrgUsageQuery) Resolve(huma.Context) []error { return checkSpan("query.last", in.Last, 0) }

// nearestIn is how long ago a limit was counted at most that is the nearest of an org.
const nearestIn = time.Hour

// orgUsage returns orgs with what they used. Without a config, orgs have the tier of their row, and no nearest limit.
func (s *Server) orgUsage(ctx context.Context, in *OrgUsageQuery) (answers.OrgUsages, error) {
	now := s.Now()
	used, err := s.Rows.UsageTop(ctx, rows.UsageTopQuery{From: now.Add(-spanOr(in.Last, 0)), To: now}, now)
	found := answers.OrgUsages{From: used.From, To: used.To}
	if err != nil {
		return found, err
	}
	orgs, err := s.Rows.Tenants(ctx, rows.TenantFilter{Prefix: in.Prefix, Usage: true})
	if err != nil {
		return found, err
	}
	overrides, err := s.Rows.OverridesByTenant(ctx)
	if err != nil {
		return found, err
	}
	nearest, err := s.nearestLimits(ctx)
	if err != nil {
		return found, err
	}
	sums := map[string]rows.OrgRanking{}
	for _, sum := range used.Items {
		sums[sum.Tenant] = sum
	}
	items := make([]answers.OrgUsage, 0, len(orgs))
	for _, org := range orgs {
		sum := sums[org.ID]
		item := answers.OrgUsage{
			Org: org.ID, Admitted: sum.Admitted, Soft: sum.Soft, Denied: sum.Denied, Overrides: overrides[org.ID],
			Nearest: nearest[org.ID],
		}
		if item.Tier, item.Source, err = s.tierOf(ctx, org); err != nil {
			return found, err
		}
		if in.Tier == "" || item.Tier == in.Tier {
			items = append(items, item)
		}
	}
	slices.SortFunc(items, func(a, b answers.OrgUsage) int {
		order := cmp.Or(orgOrders[in.Sort](&a, &b), strings.Compare(a.Org, b.Org))
		if in.Reverse {
			return -order
		}
		return order
	})
	found.Count, found.Items = len(items), items[:min(len(items), in.Limit)]
	return found, nil
}

// orgOrders compare orgs by each value of OrgUsageQuery.Sort.
var orgOrders = map[string]func(a, b *answers.OrgUsage) int{
	"org_id":    func(_, _ *answers.OrgUsage) int { return 0 },
	"tier":      func(a, b *answers.OrgUsage) int { return strings.Compare(a.Tier, b.Tier) },
	"admitted":  func(a, b *answers.OrgUsage) int { return cmp.Compare(b.Admitted, a.Admitted) },
	"denied":    func(a, b *answers.OrgUsage) int { return cmp.Compare(b.Denied, a.Denied) },
	"overrides": func(a, b *answers.OrgUsage) int { return cmp.Compare(b.Overrides, a.Overrides) },
	"nearest":   func(a, b *answers.OrgUsage) int { return cmp.Compare(fractionOf(b), fractionOf(a)) },
}

func fractionOf(u *answers.OrgUsage) float64 {
	if u.Nearest == nil {
		return -1
	}
	return u.Nearest.Fraction
}

// nearestLimits returns the limit of which each org has used most lately.
func (s *Server) nearestLimits(ctx context.Context) (map[string]*answers.NearLimit, error) {
	policies, err := s.loadedPlan()
	if err != nil {
		return nil, nil //nolint:nilerr // the list has all else
	}
	items, err := findNearLimits(ctx, policies, s.Tiers, s.Rows.UsageLeft(ctx, nearestIn), s.now(), 0, math.MaxInt32)
	nearest := map[string]*answers.NearLimit{}
	for i, item := range slices.Backward(items) { // the nearest is first
		nearest[item.Org] = &items[i]
	}
	return nearest, err
}

// tierOf returns the tier of an org, and where it comes from.
func (s *Server) tierOf(ctx context.Context, org rows.Tenant) (tier, source string, err error) {
	if org.Tier != "" {
		return org.Tier, resolve.TierOfRow, nil
	}
	policies, err := s.loadedPlan()
	if err != nil {
		return "", "", nil //nolint:nilerr // the list has all else
	}
	ids, err := (&Requests{}).orgIdentities(ctx, policies, s.Tiers, org.ID)
	if err != nil {
		return "", "", err
	}
	found := s.Tiers.Describe(policies, &ids[0], s.now())
	return found.Tier, found.Source, nil
}
