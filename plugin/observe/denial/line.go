package denial

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/jsonline"
)

const (
	// eventName and eventVersion identify the form of a line. The version changes when a reader of the old form would
	// misunderstand the new one. A new optional field does not change it.
	eventName    = "rate_limit_denial"
	eventVersion = 1
	// timeFormat is RFC 3339 with microseconds, in UTC.
	timeFormat = "2006-01-02T15:04:05.000000Z"
	// hashPrefix distinguishes the hash of a name from a name.
	hashPrefix = "hmac:"
	// MaxLine bounds the bytes of a line: its names, at most maxText bytes each, are longest where JSON escapes each byte.
	MaxLine = 28 << 10
)

// event is the JSON of a line. schema/denial_event.schema.json explains the fields.
type event struct {
	Event   string `json:"event"`
	Version int    `json:"version"`
	ID      string `json:"id"`
	Count   uint64 `json:"count"`
	Answers uint64 `json:"answers"`
	First   string `json:"first"`
	Last    string `json:"last"`
	Mode    string `json:"mode"`
	Reason  string `json:"reason"`

	Others   bool   `json:"others,omitempty"`
	Org      string `json:"org,omitempty"`
	OrgKind  string `json:"org_kind,omitempty"`
	User     string `json:"user,omitempty"`
	UserKind string `json:"user_kind,omitempty"`
	IP       string `json:"ip,omitempty"`
	Tier     string `json:"tier,omitempty"`
	Endpoint string `json:"endpoint,omitempty"`

	Policy        string `json:"policy,omitempty"`
	PolicyID      int64  `json:"policy_id,omitempty"`
	PolicyVersion int64  `json:"policy_version,omitempty"`
	Scope         string `json:"scope,omitempty"`
	Limit         *rate  `json:"limit,omitempty"`
	Cost          *int64 `json:"cost,omitempty"`
	Unit          string `json:"unit,omitempty"` // of limit and cost
	Override      int64  `json:"override,omitempty"`
	Penalty       int64  `json:"penalty,omitempty"`
	ExemptBy      string `json:"exempt_by,omitempty"`

	RetryAfter json.RawMessage `json:"retry_after_seconds,omitempty"`
	Source     string          `json:"source,omitempty"`
	Failure    string          `json:"failure,omitempty"`
	Node       string          `json:"node,omitempty"`
	RequestID  string          `json:"request_id,omitempty"`
	RequestIDs []string        `json:"more_request_ids,omitempty"`
	Mixed      []string        `json:"mixed,omitempty"`
	Truncated  []string        `json:"truncated,omitempty"`
}

// rate is the limit of a policy for the request, as an override has changed it.
type rate struct {
	Quantity      int64  `json:"quantity"`
	WindowSeconds int64  `json:"window_seconds"`
	Per           string `json:"per,omitempty"`
	Burst         int64  `json:"burst"`
}

// rate returns the limit of the first denial of g, with the length of its window then.
func (g *group) rate() *rate {
	spec := g.limit.Spec()
	r := &rate{Quantity: spec.Quantity, Burst: spec.Burst}
	r.WindowSeconds = int64(g.limit.WindowAt(limit.Micros(g.first)) / limit.Second)
	if window := policy.WindowOf(spec); window.WindowSize == 0 {
		r.Per = window.Per()
	}
	return r
}

func (r *Recorder) encode(g *group) (Line, error) {
	e := event{
		Event: eventName, Version: eventVersion, ID: r.epoch + "-" + strconv.FormatUint(r.lines.Add(1), 10),
		Count: g.count, Answers: g.answers, First: instant(g.first), Last: instant(g.last),
		Mode: g.key.mode.String(), Reason: reasonName(g.key.reason),
		Others: g.key.isOthers, Policy: clip(g.key.policy), Node: clip(r.options.Node),
	}
	if len(g.key.policy) > maxText {
		g.truncated |= policyField
	}
	if len(r.options.Node) > maxText {
		g.truncated |= nodeField
	}
	if !g.key.isOthers {
		r.describe(&e, g)
	}
	e.Mixed, e.Truncated = g.mixed.names(), g.truncated.names()
	text, err := json.Marshal(&e)
	if err != nil {
		return Line{}, fmt.Errorf("encode a line about policy %q: %w", e.Policy, err)
	}
	return Line{
		ID: e.ID, Time: time.UnixMicro(g.first), Org: e.Org, Text: jsonline.Escape(text), Denials: g.count,
	}, nil
}

// describe sets the fields about the tenant, the user and the policy.
func (r *Recorder) describe(e *event, g *group) {
	e.Org, e.OrgKind = r.displayName(identity.Name{Kind: g.key.orgKind, ID: g.key.org}, g.key.org)
	e.User, e.UserKind = r.displayName(g.user, g.key.org)
	e.IP, _ = r.displayName(identity.Name{Kind: identity.IP, ID: g.ip}, g.key.org)
	e.Tier, e.Endpoint = g.tier, g.endpoint
	if len(g.requestIDs) > 0 {
		e.RequestID, e.RequestIDs = g.requestIDs[0], g.requestIDs[1:]
	}
	e.PolicyVersion, e.Override, e.Penalty = g.policyVersion, g.override, g.penalty
	e.ExemptBy = g.exemption.Source()
	switch {
	case g.wait == limit.Never:
		e.RetryAfter = json.RawMessage("null")
	case g.wait > 0:
		e.RetryAfter = strconv.AppendInt(nil, g.wait.Seconds(), 10)
	}
	if g.scope == 0 {
		return // no policy denied
	}
	e.PolicyID, e.Scope, e.Cost, e.Unit = g.policyID, g.scope.String(), &g.cost, g.unit
	e.Limit = g.rate()
	e.Source, e.Failure = g.source.String(), g.failure.String()
}

var kindNames = [...]string{
	identity.Tenant: "tenant", identity.User: "user", identity.Credential: "credential", identity.IP: "ip",
}

// displayName returns a name within a tenant as a line shows it, and its kind; both are "" for an unidentified request.
// A tenant is an organisation, and shown as it is. Other names identify persons, and are hashed unless ShowUsers is
// set.
func (r *Recorder) displayName(name identity.Name, org string) (text, kind string) {
	if name.ID == "" || name.Kind == identity.Unidentified {
		return "", ""
	}
	kind = kindNames[name.Kind]
	if name.Kind == identity.Tenant || r.options.ShowUsers {
		return name.ID, kind
	}
	// The length separates the parts. The tenant gives equal users of two tenants different hashes.
	sum := hmac.New(sha256.New, r.options.Salt)
	head := binary.AppendUvarint([]byte{byte(name.Kind)}, uint64(len(org)))
	sum.Write(append(append(head, org...), name.ID...))
	return hashPrefix + hex.EncodeToString(sum.Sum(nil)[:16]), kind
}

// reasonName returns the reason of a denial: decision.Counted means that a quota denied.
func reasonName(reason decision.Reason) string {
	if reason == decision.Counted {
		return "quota"
	}
	return reason.String()
}

func instant(micros int64) string { return time.UnixMicro(micros).UTC().Format(timeFormat) }
