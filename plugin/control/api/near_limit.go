package api

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// NearLimitQuery selects the orgs that have used most of a limit lately.
type NearLimitQuery struct {
	Above float64 `query:"above" default:"0.8" doc:"The least fraction of a limit that was used."             minimum:"0" maximum:"1"`
	Last  string  `query:"last"  default:"10m" doc:"How long to look back, at most 24h."                     maxLength:"32"`
	Limit int     `query:"limit" default:"100" doc:"The maximum number of items."                            minimum:"1" maximum:"1000"`
}

// longestNear bounds how long a list of near limits looks back. Minutes are kept for two days.
const longestNear = 24 * time.Hour

// Resolve implements [huma.Resolver].
func (in *NearLimitQuery) Resolve(huma.Context) []error {
	return checkSpan("query.last", in.Last, longestNear)
}

func (s *Server) nearLimit(ctx context.Context, in *NearLimitQuery) (answers.NearLimits, error) {
	policies, err := s.loadedPlan()
	if err != nil {
		return answers.NearLimits{}, err
	}
	last := spanOr(in.Last, 0)
	items, err := findNearLimits(ctx, policies, s.Tiers, s.Rows.UsageLeft(ctx, last), s.now(), in.Above, in.Limit)
	return answers.NearLimits{
		Above: in.Above, Since: s.Now().UTC().Add(-last).Truncate(time.Minute), Rules: policies.Version(), Items: items,
	}, err
}

// findNearLimits returns the limits of which orgs have used at least a fraction, the largest fraction first, given what
// limits left, with the rows of an org one after the other. It takes the limits that are in force now.
func findNearLimits(
	ctx context.Context, policies *resolve.Plan, tiers *Tiers, left iter.Seq2[rows.UsageLeft, error], now limit.Micros,
	above float64, most int,
) ([]answers.NearLimit, error) {
	list := nearList{above: above, most: most, items: []answers.NearLimit{}}
	var org string
	var limits resolve.BoundsByUse
	var buckets map[nearBucket]answers.NearLimit // of the org
	for row, err := range left {
		if err != nil {
			return nil, err
		}
		if limits == nil || row.Tenant != org {
			list.add(buckets)
			org, buckets = row.Tenant, map[nearBucket]answers.NearLimit{}
			if limits, err = limitsOf(ctx, policies, tiers, org, now); err != nil {
				return nil, err
			}
		}
		b, ok := limits.Find(policy.ParseRef(row.Policy), row.Endpoint)
		if !ok || b.Policy.Scope.Shared() || b.Policy.Scope == policy.IP {
			continue
		}
		key, item := nearLimitOf(&row, &b)
		if other, ok := buckets[key]; ok {
			at := item.At
			if other.At.After(at) {
				at = other.At
			}
			if other.Remaining <= item.Remaining {
				item = other
			}
			item.At = at
		}
		buckets[key] = item
	}
	list.add(buckets)
	list.cut()
	for i := range list.items {
		list.items[i].Fraction = rounded(list.items[i].Fraction)
	}
	return list.items, nil
}

// nearBucket identifies a bucket of an org under the limit of a policy. That of a limit per route has the route of the
// usage.
type nearBucket struct {
	policy.Key
	ref   policy.Ref
	route string
}

// nearLimitOf returns what a row of usage says of a bound, and the bucket of it.
func nearLimitOf(row *rows.UsageLeft, b *policy.Bound) (nearBucket, answers.NearLimit) {
	key, size := nearBucket{Key: b.Key, ref: b.Ref()}, b.Policy.Limit.Spec().Burst
	if b.Policy.ByRoute() {
		key.route = row.Endpoint
	}
	return key, answers.NearLimit{
		Org: row.Tenant, Policy: b.Policy.Name, Row: b.Policy.Row, Tier: key.ref.Tier, Endpoint: row.Endpoint,
		Scope: b.Policy.Scope.String(), Mode: b.Policy.Mode.String(), Limit: size, Remaining: row.Remaining,
		Fraction: float64(size-min(row.Remaining, size)) / float64(size), At: row.At.UTC(),
	}
}

// otherUser is the name of a user and of a credential that no row names: it is no character.
const otherUser = "\uffff"

// limitsOf returns the bounds of an org's requests, for each endpoint that its limits distinguish. Users and
// credentials have those of one that no override names.
func limitsOf(
	ctx context.Context, policies *resolve.Plan, tiers *Tiers, org string, now limit.Micros,
) (resolve.BoundsByUse, error) {
	requests := Requests{User: otherUser, Credential: otherUser}
	ids, err := requests.orgIdentities(ctx, policies, tiers, org)
	return policies.BoundsByUse(ids, nil, now), err
}

// nearList collects the limits with the largest fraction.
type nearList struct {
	above float64
	most  int
	items []answers.NearLimit
}

// add adds the buckets of an org of which enough was used. It keeps at most twice as many as the list may have.
func (l *nearList) add(buckets map[nearBucket]answers.NearLimit) {
	for _, item := range buckets {
		if item.Fraction < l.above {
			continue
		}
		if l.items = append(l.items, item); len(l.items) >= 2*l.most {
			l.cut()
		}
	}
}

// cut sorts the list, and drops what it has too many of.
func (l *nearList) cut() {
	slices.SortFunc(l.items, func(a, b answers.NearLimit) int {
		return cmp.Or(-cmp.Compare(a.Fraction, b.Fraction), cmp.Compare(a.Org, b.Org), cmp.Compare(a.Policy, b.Policy),
			cmp.Compare(a.Endpoint, b.Endpoint))
	})
	l.items = l.items[:min(len(l.items), l.most)]
}
