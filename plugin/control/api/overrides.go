package api

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const (
	overridesPath        = "/v1/orgs/{org}/ratelimit/overrides"
	generalOverridesPath = "/v1/ratelimit/overrides"
)

// OverrideWritten is an override after a write.
type OverrideWritten struct {
	Override Override `json:"override"`
	answers.Written
}

type overrideResource = resource[*RowPath, rows.Override, Override, OverrideWritten]

type listOverridesInput struct {
	OptionalOrg
	Paging[int64]
	rows.OverrideMatch
}

type listAllOverridesInput struct {
	Paging[int64]
	rows.OverrideFilter
}

// registerOverrides adds the operations on overrides: those of one org, and those that name no org and apply to the
// requests of all.
func (s *Server) registerOverrides() {
	ofOrg := s.overridesAt(overridesPath, orgAccess)
	list(s, ofOrg.operation("list-overrides", http.MethodGet, "", "List the overrides of an org, ordered by id"),
		"list overrides", ofOrg.show, idOf,
		func(ctx context.Context, in *listOverridesInput) ([]rows.Override, error) {
			f := rows.OverrideFilter{Tenant: orgOf(ctx), OverrideMatch: in.OverrideMatch}
			f.After, f.Max = in.page()
			return s.Rows.Overrides(ctx, f)
		})
	create(ofOrg, ofOrg.operation("create-override", http.MethodPost, "",
		"Create an override for an org: a limit of its own, a multiplier, a top-up, a ban or an exemption"),
		"make an override", s.createOverride)
	preview := &place{s, overridesPath, ofOrg.tag, readAccess, readAccess}
	serve(s, preview.operation("preview-override", http.MethodPost, "/preview",
		"Show which limits of an org an override would change, and change nothing\n"+
			"The limits in force now, or when the override begins, beside those that would be in force then. An "+
			"override that has no effect changes none: another one goes before it, or it names a policy that does not apply.",
		http.StatusConflict),
		"preview an override", s.previewOverride)
	s.registerOverride(ofOrg, "override", "an override of an org",
		"Change an override of an org in place, such as its end")

	general := s.overridesAt(generalOverridesPath, readAccess)
	list(s, general.operation("list-all-overrides", http.MethodGet, "",
		"List the overrides of all orgs, and those that name no org, ordered by id"),
		"list overrides", general.show, idOf,
		func(ctx context.Context, in *listAllOverridesInput) ([]rows.Override, error) {
			in.After, in.Max = in.page()
			return s.Rows.Overrides(ctx, in.OverrideFilter)
		})
	list(s, general.operation("list-ended-overrides", http.MethodGet, "/ended",
		"List the history of overrides that have ended, ordered by id"), "list ended overrides",
		func(v view, o rows.EndedOverride) EndedOverride {
			return EndedOverride{v.override(o.Override), o.EndedAt, o.EndedBy, o.EndReason}
		},
		func(o rows.EndedOverride) int64 { return o.ID },
		func(ctx context.Context, in *listAllOverridesInput) ([]rows.EndedOverride, error) {
			in.After, in.Max = in.page()
			return s.Rows.EndedOverrides(ctx, in.OverrideFilter)
		})
	create(general, general.operation("create-general-override", http.MethodPost, "",
		"Create an override for the requests of all orgs: of a credential, an address or a network, or an exemption of a "+
			"tag or an endpoint"), "make an override", s.createOverride)
	s.registerOverride(general, "general-override", "an override that names no org",
		"Change an override that names no org in place")
}

func (s *Server) overridesAt(path string, reads access) *overrideResource {
	return &overrideResource{
		place: &place{s, path, "overrides", reads, writeAccess},
		find:  s.overrideAt, warn: s.overrideWarnings,
		state: func(o rows.Override) (string, int64) { return etag("", o.ID, o.Revision), o.Revision },
		location: func(o rows.Override) string {
			at := strings.Replace(path, "{org}", answers.PathSegment(o.Tenant), 1)
			return fmt.Sprint(at, "/", o.ID)
		},
		show:   view.override,
		answer: func(o Override, w answers.Written) OverrideWritten { return OverrideWritten{o, w} },
	}
}

// EndedOverride is an override of the history.
type EndedOverride struct {
	Override

	EndedAt   time.Time `json:"ended_at"   doc:"It had no effect after expires_at."`
	EndedBy   string    `json:"ended_by"`
	EndReason string    `json:"end_reason"`
}

func idOf(o rows.Override) int64 { return o.ID }

// registerOverride adds the operations on one override. id is the end of those of the operations.
func (s *Server) registerOverride(r *overrideResource, id, what, change string) {
	get[getRow](r, r.operation("get-"+id, http.MethodGet, one, "Get "+what), "read an override")
	update := r.operation("put-"+id, http.MethodPut, one, change, http.StatusNotFound, http.StatusConflict)
	update.Description = "The override keeps its id and author. What it is about cannot change, nor its start once " +
		"it has begun. One that has ended does not change. The reason is that of the override, and of the change in the audit."
	put(r, update, s.putOverride)
	remove[endRow](r, r.operation("delete-"+id, http.MethodDelete, one, "End "+what, stale), "end an override")
}

// overrideAt returns the override at a path. One of another org is not found.
func (s *Server) overrideAt(ctx context.Context, at *RowPath) (rows.Override, error) {
	o, err := rows.Read[rows.Override](ctx, s.Rows, at.ID)
	if err == nil && !at.includes(ctx, o.Tenant) {
		err = &rows.NotFoundError{What: fmt.Sprint("override ", at.ID)}
	}
	return o, err
}

type createOverrideInput struct {
	OptionalOrg
	Once
	Writing
	Body OverrideBody
}

func (s *Server) createOverride(ctx context.Context, in *createOverrideInput) (made done[rows.Override], err error) {
	made.change = changeOnce(ctx, in.Once, in.Body.Reason, in.Body)
	desired, err := in.Body.override(orgOf(ctx), s.Now())
	if err != nil {
		return made, err
	}
	if desired.Kind == schema.KindTopUp {
		return made.with(s.Rows.AddTopUp(ctx, made.change, s.configPlan(), desired))
	}
	return made.with(s.Rows.AddOverride(ctx, made.change, desired))
}

// putOverrideBody is an override as a caller changes it. It has all that a read returns.
type putOverrideBody struct {
	OverrideBody

	ID        int64     `json:"id,omitempty"`
	Org       string    `json:"org,omitempty"`
	Author    string    `json:"author,omitempty"`
	Source    string    `json:"source,omitempty"`
	State     string    `json:"state,omitempty"`
	CreatedAt time.Time `json:"created_at,omitzero"`
	Revision  int64     `json:"revision,omitempty"`
}

func (b *putOverrideBody) TransformSchema(r huma.Registry, s *huma.Schema) *huma.Schema {
	author, source := s.Properties["author"], s.Properties["source"]
	s = b.OverrideBody.TransformSchema(r, s)
	s.Properties["author"], s.Properties["source"] = author, source
	for _, name := range []string{"id", "org", "author", "source", "state", "created_at"} {
		s.Properties[name].Description = "As returned by a read; a write ignores it."
	}
	s.Properties["revision"].Description = "As returned by a read; a write ignores it and uses If-Match."
	return s
}

type putOverrideInput struct {
	RowPath
	IfMatch
	Writing
	ChangeReason string `query:"change_reason" maxLength:"1024" doc:"Why it is changed; recorded in the audit. Default: the reason of the override."`
	Body         putOverrideBody
}

func (s *Server) putOverride(ctx context.Context, in *putOverrideInput) *write[rows.Override] {
	return &write[rows.Override]{
		action: "change an override",
		read:   func() (rows.Override, error) { return s.overrideAt(ctx, &in.RowPath) },
		write: func(_ rows.Override, revision int64) (d done[rows.Override], err error) {
			desired, err := in.Body.override(orgOf(ctx), s.Now())
			if err != nil {
				return d, err
			}
			desired.ID, desired.Revision = in.ID, revision
			return d.with(s.Rows.PutOverride(ctx, newChange(ctx, cmp.Or(in.ChangeReason, in.Body.Reason)), desired))
		},
	}
}

type endRow struct {
	RowPath
	IfMatch
	Writing
	Reason
}

// ifMatch returns the state that an override must have to end: any, unless the caller names one.
func (e *endRow) ifMatch() *IfMatch {
	if e.isGiven() {
		return &e.IfMatch
	}
	return &IfMatch{IfMatch: "*"}
}

type previewOverrideInput struct {
	OrgPath
	Body OverrideBody
}

// previewedID identifies an override that is not written, which is newer than all that are.
const previewedID = math.MaxInt64

// previewOverride compares the limits in force with those of the same rows and one more override.
func (s *Server) previewOverride(ctx context.Context, in *previewOverrideInput) (*answers.OverridePreview, error) {
	plan, err := s.loadedPlan()
	if err != nil {
		return nil, err
	}
	o, err := in.Body.override(in.Org, s.Now())
	if err != nil {
		return nil, unprocessable(fault("body", err.Error(), nil))
	}
	if o.Author = callerOf(ctx).Token; o.Kind == schema.KindTopUp {
		if o, err = s.Rows.CheckTopUp(ctx, s.configPlan(), o); err != nil {
			return nil, err
		}
	}
	next, err := withOverride(plan, policy.Override{ID: previewedID, Override: o.Override})
	if err != nil {
		return nil, unprocessable(fault("body", err.Error(), nil))
	}
	if err := s.Rows.CheckNew(ctx, o); err != nil {
		return nil, err
	}
	now := max(s.now(), limit.Micros(o.StartsAt.UnixMicro()))
	requests := Requests{User: o.User, Credential: o.Credential, IP: firstAddress(o.IP), Endpoint: o.Endpoint}
	before, err := s.reportInForce(ctx, plan, in.Org, &requests, now, maxInForce)
	if err != nil {
		return nil, err
	}
	after, err := s.reportInForce(ctx, next, in.Org, &requests, now, maxInForce)
	if err != nil {
		return nil, err
	}
	out := &answers.OverridePreview{
		At: timeOf(now), Begin: o.StartsAt, End: o.ExpiresAt, Changes: []answers.LimitChange{},
	}
	out.Warnings.Warnings = s.warnOfWrite(ctx, func(ctx context.Context) ([]string, error) {
		return s.overrideWarnings(ctx, o)
	})
	compare(out, before, after)
	return out, nil
}

// withOverride returns a plan with one more override. The error is its fault.
func withOverride(plan *resolve.Plan, o policy.Override) (*resolve.Plan, error) {
	snapshot := plan.Snapshot()
	if snapshot == nil {
		snapshot, _ = policy.NewSnapshot(policy.Rows{}, nil)
	}
	next, faults := snapshot.Apply(policy.Changes{Rows: policy.Rows{
		Version: snapshot.Version(), Overrides: []policy.Override{o},
	}})
	if len(faults) > 0 {
		return nil, faults[0]
	}
	next, _ = next.WithCandidate(snapshot.CandidateSet()) // its faults are not about the override
	return plan.With(next), nil
}

// firstAddress returns the first address of a network; an address stands for itself.
func firstAddress(text string) string {
	if network, err := netip.ParsePrefix(text); err == nil {
		return network.Masked().Addr().String()
	}
	return text
}

func compare(p *answers.OverridePreview, before, after *inForceReport) {
	for _, o := range after.Overrides {
		if o.ID == previewedID {
			p.Applied, p.Why = o.Applied, o.Why
		}
	}
	for _, x := range after.Exceptions {
		if x.Override == previewedID {
			p.Verdict = x.Verdict
		}
	}
	for i := range after.Limits {
		l := &after.Limits[i]
		if !slices.Contains(l.Overrides, previewedID) {
			continue
		}
		was := slices.IndexFunc(before.Limits, func(b answers.LimitInForce) bool {
			return b.Policy == l.Policy && b.Endpoint == l.Endpoint && b.Match == l.Match && b.Row == l.Row
		})
		if was < 0 || reflect.DeepEqual(numbersOf(&before.Limits[was]), numbersOf(l)) {
			continue
		}
		p.Changes = append(p.Changes, answers.LimitChange{
			Policy: l.Policy, Endpoint: l.Endpoint, Scope: l.Scope, Algorithm: l.Algorithm, Unit: l.Unit,
			Before: numbersOf(&before.Limits[was]), After: numbersOf(l),
		})
	}
}

func numbersOf(l *answers.LimitInForce) answers.LimitNumbers {
	return answers.LimitNumbers{Limit: l.Limit, Window: l.Window, Burst: l.Burst}
}
