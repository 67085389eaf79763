package resolve

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const endpointIsAnother = "the endpoint is another"

// ExplainedOverride describes an override that could apply.
type ExplainedOverride struct {
	Override policy.Override `json:"row"`
	Unit     string          `json:"unit,omitempty"` // of the limit that it is about
	Target   string          `json:"target"`
	Applied  bool            `json:"applied"`
	Why      string          `json:"why"`
	Outcomes []Outcome       `json:"-"` // what Applied and Why are made of
}

// Outcome describes what an override does to one limit of a request, or to the request as a whole.
type Outcome struct {
	Bound    *policy.Bound // the limit; nil: the request
	Limit    string        // the name of the limit; "": the request
	Unit     string        // of the limit
	Endpoint string        // of the request, where the outcomes of several are described together; "" for all
	Applied  bool
	Why      string // "" of an override that changes the limit

	irrelevant bool // the override is not about the request
}

// At returns the outcome as one of the requests to an endpoint.
func (o Outcome) At(endpoint string) Outcome {
	if !o.irrelevant {
		o.Endpoint = endpoint
	}
	return o
}

// ExplainOverrides lists the overrides that are looked up for an identity, also those that do not apply, and describes
// what each does to its request. r must be what ResolveAt returns for both. With a set of ids that is not nil, it lists
// these overrides alone.
func (p *Plan) ExplainOverrides(
	id *identity.Identity, now limit.Micros, r *Resolution, only map[int64]bool,
) []ExplainedOverride {
	list := []ExplainedOverride{}
	if r.Exempt {
		r = p.withoutExemption(id, r)
	}
	if p.snapshot == nil {
		return list
	}
	for _, o := range p.snapshot.OverridesFor(id) {
		if only != nil && !only[o.ID] {
			continue
		}
		x := ExplainedOverride{Override: o.Normalized(), Target: o.TargetText()}
		x.Outcomes = p.outcomes(o, id, now, r)
		x.Applied, x.Why, x.Unit = DescribeOutcomes(x.Outcomes)
		list = append(list, x)
	}
	return list
}

// withoutExemption returns a copy of the resolution of an exempt request with the bounds that it would have without the
// exemption.
func (p *Plan) withoutExemption(id *identity.Identity, r *Resolution) *Resolution {
	other := *r
	other.Bounds, other.rows = nil, nil
	p.bind(p.tenantRows(id), id, &other)
	return &other
}

func (p *Plan) outcomes(o *policy.CompiledOverride, id *identity.Identity, now limit.Micros, r *Resolution) []Outcome {
	switch {
	case now < o.Starts:
		return []Outcome{{Why: "it starts at " + o.Normalized().StartsAt.Format(time.RFC3339)}}
	case !o.ActiveAt(now):
		return []Outcome{{Why: "it has expired"}}
	case o.Tenant != "" && (id.Tenant.Kind != identity.Tenant || o.Tenant != id.Tenant.ID):
		return []Outcome{{Why: "the tenant is another"}}
	}
	active := r.overrides.Find(o.ID)
	if active == nil {
		return []Outcome{{Why: endpointIsAnother, irrelevant: true}}
	}
	winner := r.overrides.Find(r.Override) // the row that bans or exempts the request, if there is one
	switch {
	case winner == active && r.Banned:
		return []Outcome{{Applied: true, Why: "it bans the request"}}
	case winner == active:
		return []Outcome{{Applied: true, Why: "it exempts the request"}}
	case o.IsBan() || o.IsExemption():
		return []Outcome{{Why: policy.WhyBefore(winner, active)}}
	}
	list := r.changes(active)
	switch {
	case list[0].irrelevant:
	case r.Exempt:
		return []Outcome{{Why: r.Exemption.Source() + " exempts the request"}}
	case r.Banned:
		list = append(list, Outcome{Why: fmt.Sprintf("override %d bans the request", r.Override)})
	}
	return list
}

func (r *Resolution) changes(o *policy.ActiveOverride) []Outcome {
	var list []Outcome
	for i := range r.Bounds {
		b := &r.Bounds[i]
		if !o.Covers(b) {
			continue
		}
		outcome := Outcome{Bound: b, Limit: b.Policy.Name, Unit: b.Policy.Unit}
		switch strongest := r.overrides.Strongest(b, o.Detector); {
		case o.IsTopUp() && b.TopUp > 0:
			outcome.Applied = true
		case o.IsTopUp():
			outcome.Why = "the limit is the largest that there can be"
		case strongest != o:
			outcome.Why = policy.WhyBefore(strongest, o)
		case b.Override == o.ID || b.Penalty == o.ID:
			outcome.Applied = true
		default:
			outcome.Why = "its numbers cannot be counted exactly by the algorithm of the limit, which stays as it was"
		}
		list = append(list, outcome)
	}
	if len(list) == 0 {
		list = []Outcome{{Why: "no limit of the request is one that it changes", irrelevant: true}}
	}
	return list
}

// DescribeOutcomes reports whether an override applies to any of the requests and limits of its outcomes, and returns
// in words to which of them, and why not to the others, and the unit of the limits.
func DescribeOutcomes(list []Outcome) (applied bool, why, unit string) {
	var (
		changed, clauses []string
		reasons          []reason
	)
	for i := range list {
		unit = cmp.Or(unit, list[i].Unit)
		switch o := &list[i]; {
		case o.Applied && o.Limit == "":
			applied, clauses = true, appendNew(clauses, o.Why)
		case o.Applied:
			applied, changed = true, appendNew(changed, o.Limit)
		default:
			reasons = addReason(reasons, o)
		}
	}
	if len(changed) > 0 {
		clauses = append(clauses, "it changes "+strings.Join(changed, ", "))
	}
	relevant := slices.DeleteFunc(slices.Clone(reasons), func(r reason) bool { return r.irrelevant })
	if len(relevant) == 0 && !applied && len(reasons) > 0 { // that the endpoint is another says the least
		i := max(slices.IndexFunc(reasons, func(r reason) bool { return r.why != endpointIsAnother }), 0)
		relevant = reasons[i : i+1]
	}
	for _, r := range relevant {
		where := ""
		if applied || len(relevant) > 1 {
			where = r.where()
		}
		clauses = append(clauses, where+r.why)
	}
	return applied, strings.Join(clauses, "; "), unit
}

type reason struct {
	why        string
	irrelevant bool
	places     []place
}

// place names a limit and an endpoint; empty: all.
type place struct{ limit, endpoint string }

// addReason adds why an override does not apply. Equal texts are one reason with several places.
func addReason(list []reason, o *Outcome) []reason {
	i := slices.IndexFunc(list, func(r reason) bool { return r.why == o.Why })
	if i < 0 {
		i, list = len(list), append(list, reason{why: o.Why, irrelevant: o.irrelevant})
	}
	if p := (place{o.Limit, o.Endpoint}); !slices.Contains(list[i].places, p) {
		list[i].places = append(list[i].places, p)
	}
	return list
}

// where returns the places of a reason, as the start of a clause; "" for all requests.
func (r reason) where() string {
	const most = 3
	var texts []string
	for _, p := range r.places {
		general := place{limit: p.limit}
		switch {
		case slices.Contains(r.places, place{}):
			return ""
		case p != general && slices.Contains(r.places, general): // it includes this one
		case p.limit == "":
			texts = append(texts, "at "+p.endpoint)
		case p.endpoint == "":
			texts = append(texts, "on "+p.limit)
		default:
			texts = append(texts, "on "+p.limit+" at "+p.endpoint)
		}
	}
	for i := 1; i < len(texts); i++ {
		texts[i] = texts[i][len("on "):]
	}
	if more := len(texts) - most; more > 0 {
		texts = append(texts[:most-1], fmt.Sprintf("%s and %d more", texts[most-1], more))
	}
	return strings.Join(texts, ", ") + " "
}

func appendNew(list []string, text string) []string {
	if slices.Contains(list, text) {
		return list
	}
	return append(list, text)
}
