package api

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"math"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/addresses"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const usageTag = "usage"

func (s *Server) registerUsage() {
	at := &place{s, orgPath + "/ratelimit", usageTag, orgAccess, writeAccess}
	usage := at.operation("get-org-usage", http.MethodGet, "/usage",
		"Show what an org has used of its limits, without spending, or over time\n"+
			"Without from, to, step and group_by: its buckets as they are now. With one of them: its usage history, as "+
			"/usage/history has it. "+aboutHistory)
	usage.Responses["200"] = &huma.Response{
		Description: "The buckets, or the history.",
		Content: map[string]*huma.MediaType{jsonType: {Schema: &huma.Schema{OneOf: []*huma.Schema{
			s.schemaOf(answers.Usage{}), s.schemaOf(rows.UsageHistory{}),
		}}}},
	}
	serve(s, usage, "read the usage history", s.usage)
	serve(s, at.operation("get-org-usage-history", http.MethodGet, "/usage/history",
		"Show what an org has used by minute, hour or day\n"+aboutHistory), "read the usage history", s.usageHistory)
	once(s, at.operation("reset-org-usage", http.MethodPost, "/reset",
		"Empty the buckets of an org, which restores its full limits\n"+
			"409: the first request with this Idempotency-Key is still in progress, and nothing was done. Send "+
			"it again in a moment.", http.StatusConflict), "record the reset", s.reset)
	all := &place{s, "/v1/ratelimit", usageTag, readAccess, writeAccess}
	serve(s, all.operation("get-usage-top", http.MethodGet, "/usage/top", "List the orgs that used most\n"+
		"The requests of all processes that report usage, without the last seconds. They are summed up from "+
		"minutes for at most 2 hours, from hours for at most 2 days, else from days. A time of which shorter steps may "+
		"have been dropped is summed up from longer ones."), "rank the usage", s.usageTop)
	serve(s, all.operation("get-usage-total", http.MethodGet, "/usage/history",
		"Show what all orgs together used over time\n"+
			"A row has the requests of one step, without the last seconds. Steps are as those that usage/top sums up: "+
			"minutes for at most 2 hours, hours for at most 2 days, else days."), "sum up the usage", s.usageTotal)
	serve(s, all.operation("list-org-usage", http.MethodGet, "/usage/orgs",
		"List all orgs with their tier, usage, nearest limit and overrides\n"+
			"The orgs that have usage, a tier or a time zone. The nearest limit is the one of which most was used in the last "+
			"hour, as near-limit has it."), "list the usage of orgs", s.orgUsage)
	serve(s, all.operation("list-near-limit", http.MethodGet, "/near-limit",
		"List the orgs that have used most of a limit lately\n"+
			"For each org and policy: the least that was left in the last minutes, from the usage history, beside "+
			"the limit that is in force now. It lacks the last seconds. A limit that requests were not counted against in "+
			"this time is missing, and so are limits that orgs share, and orgs that are banned or exempt now. Of a limit per user or "+
			"credential it is the one with the least left. Overrides that name a user, a credential or an address are not "+
			"taken into account. A bucket is listed once, also if requests to several endpoints spend from it."),
		"read what limits left", s.nearLimit)
}

type usageInput struct {
	OrgPath
	Requests
	Period
	Policy string `query:"policy" maxLength:"64" doc:"Only buckets of the policies of this name; in a history what this policy did, instead of the requests themselves."`
}

func (in *usageInput) Resolve(ctx huma.Context, at *huma.PathBuffer) []error {
	faults := in.Requests.Resolve(ctx, at)
	if in.Period == (Period{}) {
		return faults
	}
	for name, value := range map[string]string{
		"user": in.User, "credential": in.Credential, "ip": in.IP, "tier": in.Tier,
	} {
		if value != "" {
			faults = append(faults, fault("query."+name, "a usage history has no "+name+": leave it out, or leave out "+
				"from, to, step and group_by to see the buckets", value))
		}
	}
	return faults
}

// usage returns an answers.Usage or a rows.UsageHistory.
func (s *Server) usage(ctx context.Context, in *usageInput) (any, error) {
	if in.Period != (Period{}) {
		return s.usageHistory(ctx, &usageHistoryInput{
			OrgPath: in.OrgPath, Period: in.Period, Endpoint: in.Endpoint, Policy: in.Policy,
		})
	}
	found, err := s.findBuckets(ctx, in.Org, &in.Requests, in.Policy)
	if err != nil {
		return nil, err
	}
	items := found.items()
	for i := range items {
		if b := &found.bounds[i]; b.Key.Slots {
			slots, err := s.OperatorBuckets.Slots(ctx, b, answers.MaxSlots)
			if err != nil {
				return nil, s.bucketsError("list the slots", "see the log", err)
			}
			items[i].Slots = answers.SlotsOf(&b.Policy.Limit, slots)
		}
	}
	return answers.Usage{
		Org: in.Org, Namespace: found.policies.Namespace(), Version: found.policies.Version(), Items: items,
		OrgTier: s.Tiers.Describe(found.policies, &found.id, s.now()),
	}, nil
}

// schemaOf returns the schema of a body, and publishes it.
func (s *Server) schemaOf(body any) *huma.Schema {
	of := reflect.TypeOf(body)
	return s.api.OpenAPI().Components.Schemas.Schema(of, true, of.Name())
}

// orgBuckets are buckets of an org, with the status of each.
type orgBuckets struct {
	policies *resolve.Plan
	id       identity.Identity
	bounds   []policy.Bound
	statuses []decision.Status
}

// findBuckets returns the buckets that requests of an org spend from; with a name, those of its policies. Of address
// prefixes it returns those in use. The error is an answer.
func (s *Server) findBuckets(ctx context.Context, org string, requests *Requests, named string) (*orgBuckets, error) {
	policies, err := s.loadedPlan()
	if err != nil {
		return nil, err
	}
	if s.Buckets == nil {
		return nil, huma.Error503ServiceUnavailable("the buckets cannot be read: with strategy local every node keeps " +
			"its own")
	}
	policies = policies.ForTenant(org)
	ids, err := requests.orgIdentities(ctx, policies, s.Tiers, org)
	if err != nil {
		return nil, err
	}
	id := ids[0]
	if err := s.authorizeTier(ctx, policies, &id, requests.Tier); err != nil {
		return nil, err
	}
	bounds := requests.bounds(policies, id, s.now())
	for _, other := range ids[1:] {
		for _, b := range requests.bounds(policies, other, s.now()) {
			isListed := func(o policy.Bound) bool { return o.Key == b.Key && o.Ref() == b.Ref() && o.Pool == b.Pool }
			if !slices.ContainsFunc(bounds, isListed) {
				bounds = append(bounds, b)
			}
		}
	}
	bounds = slices.DeleteFunc(bounds, func(b policy.Bound) bool { return named != "" && b.Policy.Name != named })
	bounds = addresses.WithPrefixes(bounds)
	statuses, err := s.readBuckets(ctx, bounds)
	if err != nil {
		return nil, err
	}
	bounds, statuses = addresses.InUse(bounds, statuses)
	return &orgBuckets{policies, id, bounds, statuses}, nil
}

const readBatch = 64

// readBuckets returns the status of each bucket. The error is an answer.
func (s *Server) readBuckets(ctx context.Context, bounds []policy.Bound) ([]decision.Status, error) {
	statuses := make([]decision.Status, 0, len(bounds))
	for some := range slices.Chunk(bounds, readBatch) {
		batch := make([]decision.Status, len(some))
		if err := s.OperatorBuckets.Peek(ctx, some, batch); err != nil {
			return nil, s.bucketsError("read the buckets", "see the log", err)
		}
		for i := range batch {
			if failure := batch[i].Failure; failure != decision.NoFailure {
				return nil, s.bucketsError("read the buckets", failure.String(), nil)
			}
		}
		statuses = append(statuses, batch...)
	}
	return statuses, nil
}

func (f *orgBuckets) items() []answers.BucketUsage {
	items := make([]answers.BucketUsage, len(f.bounds))
	for i := range items {
		items[i] = usageOf(f.policies, &f.bounds[i], &f.statuses[i])
	}
	return items
}

// bucketsError returns the answer to a failed call of Redis.
func (s *Server) bucketsError(action, why string, err error) error {
	s.Log.Error("reading or resetting buckets in Redis failed", "action", action, "why", why, "error", err)
	return huma.Error503ServiceUnavailable(fmt.Sprintf("%s: Redis did not answer as expected (%s)", action, why))
}

func usageOf(policies *resolve.Plan, b *policy.Bound, status *decision.Status) answers.BucketUsage {
	spec := b.Policy.Limit.Spec()
	return answers.BucketUsage{
		Policy: b.Policy.Name, Row: b.Policy.Row, Tier: b.Ref().Tier, Of: cmp.Or(b.Key.SubjectText(), "the org"),
		Endpoint: b.Key.Endpoint, Scope: b.Policy.Scope.String(), Description: b.Policy.Describe(),
		Limit: spec.Burst, Window: policy.WindowOf(spec), Used: status.Used, Remaining: status.Remaining, Unit: b.Policy.Unit,
		Fraction: rounded(float64(status.Used) / float64(spec.Burst)), Reset: timeOf(status.Reset),
		ResetAfter: (status.Reset - status.Now).Seconds(), Mode: b.Policy.Mode.String(),
		PublicNote: b.Policy.PublicNote, MayLease: policies.AccuracyOf(b) == policy.Leased,
	}
}

func rounded(fraction float64) float64 {
	const thousandths = 1000
	return float64(int64(fraction*thousandths+0.5)) / thousandths
}

// timeOf returns an instant as JSON shows it.
func timeOf(instant limit.Micros) time.Time { return time.UnixMicro(int64(instant)).UTC() }

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
	if math.IsNaN(in.Above) { // it is within any bounds
		return []error{fault("query.above", "must be a number", nil)}
	}
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
	items := []answers.NearLimit{}
	var org string
	var limits resolve.BoundsByUse
	var buckets map[nearBucket]answers.NearLimit // of the org
	// End keeps the buckets of the org of which enough was used, and at most twice as many as the list may have.
	end := func() {
		for _, item := range buckets {
			if item.Fraction >= above {
				items = append(items, item)
			}
		}
		if len(items) >= 2*most {
			items = nearest(items, most)
		}
	}
	for row, err := range left {
		if err != nil {
			return nil, err
		}
		if limits == nil || row.Tenant != org {
			end()
			org, buckets = row.Tenant, map[nearBucket]answers.NearLimit{}
			requests := Requests{User: otherUser, Credential: otherUser}
			ids, err := requests.orgIdentities(ctx, policies, tiers, org)
			if err != nil {
				return nil, err
			}
			limits = policies.BoundsByUse(ids, nil, now)
		}
		b, ok := limits.Find(policy.ParseRef(row.Policy), row.Endpoint)
		if !ok || !b.Policy.Scope.OfTenant() {
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
	end()
	items = nearest(items, most)
	for i := range items {
		items[i].Fraction = rounded(items[i].Fraction)
	}
	return items, nil
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
		Scope: b.Policy.Scope.String(), Mode: b.Policy.Mode.String(), Unit: b.Policy.Unit, Limit: size,
		Remaining: row.Remaining, Fraction: float64(size-min(row.Remaining, size)) / float64(size), At: row.At.UTC(),
	}
}

// otherUser is the name of a user and of a credential that no row names: it is no character. The limits of these are
// those of users and credentials that no override names.
const otherUser = "\uffff"

// nearest returns the items with the largest fraction, the largest first.
func nearest(items []answers.NearLimit, most int) []answers.NearLimit {
	slices.SortFunc(items, func(a, b answers.NearLimit) int {
		return cmp.Or(-cmp.Compare(a.Fraction, b.Fraction), cmp.Compare(a.Org, b.Org), cmp.Compare(a.Policy, b.Policy),
			cmp.Compare(a.Endpoint, b.Endpoint))
	})
	return items[:min(len(items), most)]
}
