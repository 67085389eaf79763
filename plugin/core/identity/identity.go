// Package identity derives who a request is from: facts read from the gateway in, tenant, user and tier out.
//
// Each fact costs a question to the gateway. [Rules.Identify] therefore returns the facts it still needs, and needs an
// address or a credential only if a better name is missing. It trusts no header that the administrator did not list.
// Reading facts from the wire is the job of package phase, limits per tier the job of package resolve.
package identity

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Facts is a set of facts about a request.
type Facts uint16

// The facts.
const (
	ConsumerFact    Facts = 1 << iota // Request.Consumer
	CredentialFact                    // Request.CredentialID
	IPFact                            // Request.IP
	TargetFact                        // Request.Method, Path and HTTP2
	RouteFact                         // Request.Route and GRPCRoute
	TokenFact                         // Request.Token
	HeaderFacts                       // Request.Headers
	ContentTypeFact                   // Request.ContentType
	RequestIDFact                     // Request.ID
	CallerFacts                       // Request.Caller
	PreflightFacts                    // Request.Origin and RequestedMethod
)

// Consumer is the consumer that the gateway authenticated; the zero value means none.
type Consumer struct {
	ID, Username, CustomID string
	Tags                   []string
}

// Request holds the facts of one request. Only the fields that Known names are meaningful.
type Request struct {
	Known        Facts
	Consumer     Consumer
	CredentialID string
	IP           string   // the client's address, after the gateway's trusted proxies
	Method       string   // upper case
	Path         string   // as NormalizePath gives it
	Target       string   // the path and query as the client sent them
	HTTP2        bool     // the client speaks HTTP/2
	Route        string   // the route's name, or its id when it has none
	GRPCRoute    bool     // the route has a gRPC protocol
	Token        string   // the JWT that the gateway verified; "" without one
	Headers      []string // the values of Rules.Headers, in that order; "" where the client sent none
	Repeated     string   // HeaderFacts: one of Rules.Headers that came with more than one value; "" if none did
	ContentType  string

	Origin, RequestedMethod string // the headers Origin and Access-Control-Request-Method; "" without

	ID     string // the gateway's id of the request, as in its logs and in X-Kong-Request-Id
	Caller Caller
}

// Reset clears all facts and keeps the memory.
func (r *Request) Reset() {
	tags, headers := r.Consumer.Tags[:0], r.Headers[:0]
	*r = Request{Headers: headers}
	r.Consumer.Tags = tags
}

// Name names a tenant, a user or what stands in for one: an id and its kind.
type Name struct {
	Kind Kind
	ID   string
}

// Kind is the kind of thing that a name names. The zero value names nothing.
type Kind uint8

// The kinds of names.
const (
	Unidentified Kind = iota
	Tenant
	User
	Credential
	IP
)

// Identity describes who a request is from, and to which endpoint it goes.
type Identity struct {
	Tenant     Name   // IP where anonymous clients are limited by address; Unidentified: no tenant limit applies
	Tier       string // the tenant's tier as it claims it; the policies know which tiers exist
	TierSource string // where Tier was found, as the config names it: consumer.tag.tier; "": a caller states it
	User       Name   // of kind User, or what stands in for one; Unidentified: no user limit applies
	Credential string
	IP         string // an IPv6 address is its prefix
	Method     string
	Path       string
	Route      string
	Cost       int64  // from the cost header or the caller; 0: none
	Model      string // of a language model that the request states; "": unknown
	Provider   string // of that model; "": unknown
	Repeated   string // a trusted header that came with more than one value; "" if none did

	Address     netip.Addr               // the whole client address, IPv4 not mapped; invalid: none, or no rule needs it
	Tags        []string                 // of a known consumer, if a rule needs them, in the request's memory
	PathDecoded bool                     // Path has reserved characters that were escaped (decode_path)
	Preflight   bool                     // a CORS preflight, if the rules look for them
	Reserves    [MaxReserveHeaders]int64 // from Rules.ReserveHeaders, in that order, in tokens; 0: none

	Anonymous    bool // no source named a tenant
	UserMissing  bool // no source named a user where a limit needs one
	TenantDenied bool // Anonymous, and on_missing_tenant is deny
	UserDenied   bool // UserMissing, and on_missing_user is deny
}

// MaxReserveHeaders bounds how many headers carry reservations under one set of rules.
const MaxReserveHeaders = schema.MaxReserveHeaders

// Reset clears the identity.
func (id *Identity) Reset() { *id = Identity{} }

// Missing is the rule for a missing name.
type Missing uint8

// The rules for missing names.
const (
	Skip         Missing = iota // the limits that need the name do not apply
	ByCredential                // user: the credential stands in, then the address
	ByIP                        // the client's address stands in
	Deny
)

// Rules identify requests. They are compiled from the plugin's config and immutable.
type Rules struct {
	Tenant, User, Tier []Source // in order of preference
	Model, Provider    []Source // one each, or none
	Anonymous          []string // usernames or ids of consumers that stand for anonymous clients
	OnMissingTenant    Missing  // Skip, ByIP or Deny
	OnMissingUser      Missing
	IPv6Prefix         int // IPv6 addresses are counted per prefix of this many bits
	CostHeader         int // index of the cost header among Headers; -1 for none
	CostHeaderMax      int64
	CallerCost         bool     // the cost is Request.Caller's
	ReserveHeaders     []int    // indexes among Headers of those that carry reservations, at most MaxReserveHeaders
	Headers            []string // names of the headers that Request.Headers holds, or shared.<name> of kong.ctx.shared
	Required           Facts    // needed of every request
	NeedUser           bool     // some limit is counted per user
	NeedTenant         bool     // some limit is a tenant's
	NeedCredential     bool     // some limit is counted per credential
	SeekTenant         bool     // some exemption names a tenant: one that is missing counts as another
	SeekUser           bool     // some exemption names a user, in the same way
	NeedAddress        bool     // some exemption names a network
	NeedTags           bool     // some exemption names a tag
	NeedPreflight      bool     // preflights are exempt
	DecodePath         bool     // endpoints are matched on the path without any escapes
	AnonymousLimits    bool     // anonymous clients have limits of their own, never per user or credential
}

// EndpointPath returns the form of a normalized path that endpoint patterns match.
func (r *Rules) EndpointPath(normal string) string {
	if r.DecodePath {
		return DecodePath(normal)
	}
	return normal
}

// Identify fills id from the facts of req and returns the facts that are still needed; 0: id is complete. Call it again
// when they are known. It needs at most three rounds, and one more for an OPTIONS request if preflights are exempt.
func (r *Rules) Identify(req *Request, id *Identity) Facts {
	if missing := r.Required &^ req.Known; missing != 0 {
		return missing
	}
	id.Reset()
	id.Method, id.Path, id.Route = req.Method, r.EndpointPath(req.Path), req.Route
	id.PathDecoded = id.Path != req.Path
	id.Credential = part(req.CredentialID)
	if req.Known&IPFact != 0 {
		id.IP = r.AddressOf(req.IP)
	}
	if need := r.identifyExempt(req, id); need != 0 {
		return need
	}
	if req.Repeated != "" {
		id.Repeated, id.Anonymous = req.Repeated, true
		return 0
	}
	id.Cost = r.cost(req)
	who := reader{rules: r, request: req}
	id.Model, id.Provider = who.call(r.Model), who.call(r.Provider)
	for i, header := range r.ReserveHeaders {
		id.Reserves[i] = req.number(header, math.MaxInt64)
	}
	if !r.NeedTenant {
		r.seekNames(&who, id)
		return 0
	}
	if need := r.identifyTenant(&who, id); need != 0 {
		return need
	}
	if id.Tenant.Kind == Unidentified || (id.Anonymous && r.AnonymousLimits) {
		return 0
	}
	if !r.NeedUser {
		r.seekNames(&who, id)
	} else if need := r.identifyUser(&who, id); need != 0 {
		return need
	}
	if r.NeedCredential && id.Credential == "" && req.Known&IPFact == 0 {
		return IPFact // the address stands in, so that omitting a credential gains nothing
	}
	return 0
}

// identifyExempt fills in what only exemptions need.
func (r *Rules) identifyExempt(req *Request, id *Identity) Facts {
	if r.NeedAddress {
		id.Address = wholeAddress(req.IP)
	}
	if r.NeedTags && !r.anonymous(&req.Consumer) {
		id.Tags = req.Consumer.Tags
	}
	if r.NeedPreflight && req.Method == "OPTIONS" {
		if req.Known&PreflightFacts == 0 {
			return PreflightFacts
		}
		id.Preflight = req.isPreflight()
	}
	return 0
}

// seekNames fills in the tenant and the user that only exemptions need, if the request names them.
func (r *Rules) seekNames(who *reader, id *Identity) {
	if r.SeekTenant && id.Tenant.Kind == Unidentified && !r.anonymous(&who.request.Consumer) {
		id.Tenant = who.name(Tenant, r.Tenant)
	}
	if r.SeekUser && id.Tenant.Kind == Tenant {
		id.User = who.name(User, r.User)
	}
}

func (r *Rules) identifyTenant(who *reader, id *Identity) Facts {
	if !r.anonymous(&who.request.Consumer) {
		if id.Tenant = who.name(Tenant, r.Tenant); id.Tenant.Kind == Tenant {
			id.Tier, id.TierSource = who.first(r.Tier)
			return 0
		}
	}
	id.Anonymous = true
	switch r.OnMissingTenant {
	case Deny:
		id.TenantDenied = true
	case ByIP:
		if who.request.Known&IPFact == 0 {
			return IPFact
		}
		id.Tenant = Name{Kind: IP, ID: id.IP}
	default:
	}
	return 0
}

func (r *Rules) identifyUser(who *reader, id *Identity) Facts {
	if id.User = who.name(User, r.User); id.User.Kind == User {
		return 0
	}
	id.UserMissing = true
	switch r.OnMissingUser {
	case Deny:
		id.UserDenied = true
		return 0
	case Skip:
		return 0
	case ByCredential:
		if who.request.Known&CredentialFact == 0 {
			return CredentialFact
		}
		if id.Credential != "" {
			id.User = Name{Kind: Credential, ID: id.Credential}
			return 0
		}
	default:
	}
	if who.request.Known&IPFact == 0 {
		return IPFact
	}
	id.User = Name{Kind: IP, ID: id.IP}
	return 0
}

func (r *Rules) anonymous(c *Consumer) bool {
	return c.Username != "" && slices.Contains(r.Anonymous, c.Username) || c.ID != "" && slices.Contains(r.Anonymous, c.ID)
}

// cost returns the cost that the caller or the request's header claims. A header must be a whole number up to
// CostHeaderMax, which larger ones count as. Anything else counts as absent and returns 0, so that nonsense gains
// nothing.
func (r *Rules) cost(req *Request) int64 {
	if r.CallerCost {
		return min(max(req.Caller.Cost, 0), MaxCallerCost)
	}
	return req.number(r.CostHeader, r.CostHeaderMax)
}

// number returns the whole number in a header, given by its index, up to most. Without such a number it returns 0.
func (r *Request) number(header int, most int64) int64 {
	if header < 0 || header >= len(r.Headers) {
		return 0
	}
	text := r.Headers[header]
	if text == "" || strings.Trim(text, "0123456789") != "" {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil { // more digits than a number has
		return most
	}
	return min(n, most)
}

// AddressOf returns ip as it is counted: IPv4 as it is (mapped into IPv6 or not), IPv6 as its prefix. Clients without
// an address (the gateway listens on a unix socket) share the name "unknown".
func (r *Rules) AddressOf(ip string) string {
	switch addr := wholeAddress(ip); {
	case ip == "":
		return "unknown"
	case !strings.Contains(ip, ":"), !addr.IsValid():
		return part(ip)
	case addr.Is4():
		return addr.String()
	default:
		prefix, _ := addr.Prefix(r.IPv6Prefix) // fails only beyond 128 bits
		return prefix.String()
	}
}

// wholeAddress parses a client's address. It returns the zero Addr for a client without one.
func wholeAddress(ip string) netip.Addr {
	if ip == "" {
		return netip.Addr{} // an error would allocate
	}
	addr, _ := netip.ParseAddr(ip)
	return addr.Unmap().WithZone("")
}

const (
	maxPart    = 128
	hashedPart = "sha256:"
)

// part bounds one part of a bucket's key: it replaces a name of more than 128 bytes by its hash, and also a name that
// looks like such a hash, so that no client can choose a name that collides with another.
func part(name string) string {
	if len(name) <= maxPart && !strings.HasPrefix(name, hashedPart) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return hashedPart + hex.EncodeToString(sum[:])
}
