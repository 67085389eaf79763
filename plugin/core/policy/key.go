package policy

import (
	"strconv"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
)

// Group selects which buckets are kept together: the buckets of one group share a slot of a Redis Cluster.
type Group uint8

// The groups.
const (
	ByTenant   Group = iota + 1 // GroupID is the tenant
	ByIP                        // GroupID is the address, or the /64 of an IPv6 address
	ByEndpoint                  // GroupID is the endpoint
	ByAll                       // GroupID is "", or a network whose requests count together
)

// Kind names the kind of subject within a group.
type Kind uint8

// The kinds. A user and a credential of one name are two subjects.
const (
	WholeGroup Kind = iota // Subject is "": the bucket belongs to the group
	KindUser
	KindCredential
	KindIP
)

// Key names a bucket: (namespace, policy name, subject). Two bounds with one key spend from one bucket, wherever
// they were configured. Keys are comparable; their parts are the raw identities, so a store that joins them into a
// string must escape them.
type Key struct {
	Namespace string
	Policy    string
	Group     Group
	Kind      Kind
	// Slots marks the bucket of a concurrency limit. A limit of the same name that counts tokens has another bucket: none
	// of them counts what the other does. It stands here because neighbours without pointers are hashed together.
	Slots    bool `json:",omitempty"`
	GroupID  string
	Subject  string
	Endpoint string // scopes with an endpoint beside a tenant or user only
}

// Shared reports whether all tenants spend from the bucket: it is counted per endpoint or in total.
func (k *Key) Shared() bool { return k.Group == ByEndpoint || k.Group == ByAll }

// SubjectText returns the subject within the group in words, or "" for a bucket of the whole group.
func (k *Key) SubjectText() string {
	switch k.Kind {
	case KindUser:
		return "user " + k.Subject
	case KindCredential:
		return "credential " + k.Subject
	case KindIP:
		return "ip " + k.Subject
	default:
		return ""
	}
}

// Clone returns a copy for a store to keep: its names share no memory with the request's texts, of which they may be
// small parts.
func (k *Key) Clone() Key {
	c := *k
	c.GroupID, c.Subject, c.Endpoint = strings.Clone(c.GroupID), strings.Clone(c.Subject), strings.Clone(c.Endpoint)
	return c
}

// FillKey fills in the policy's bucket for an identity. It reports false if the identity lacks a name that the scope is
// counted per.
func (p *Policy) FillKey(namespace string, id *identity.Identity, key *Key) bool {
	// A policy for some endpoint has a bucket of its own, whatever its scope: the policy of the same name for the other
	// endpoints may have another window, and one bucket cannot hold the state of both.
	key.Namespace, key.Policy, key.Endpoint, key.Slots = namespace, p.Name, p.Endpoint, p.Limit.IsConcurrency()
	switch p.Scope {
	case Global:
		key.Group = ByAll
		if p.match == forNetwork {
			key.GroupID = p.subject
		}
		return true
	case IP:
		key.Group, key.GroupID = ByIP, id.IP
		return id.IP != ""
	case Endpoint:
		key.Group, key.GroupID, key.Endpoint = ByEndpoint, p.bucketEndpoint(id), ""
		return true
	}
	key.Group, key.GroupID = ByTenant, id.Tenant.ID
	if id.Tenant.Kind == identity.IP {
		key.Group = ByIP
	}
	if p.Scope.ByEndpoint() {
		key.Endpoint = p.bucketEndpoint(id)
	}
	switch p.Scope {
	case Credential:
		key.Kind, key.Subject = KindCredential, id.Credential
		if id.Credential == "" {
			key.Kind, key.Subject = KindIP, id.IP
		}
		return key.Subject != ""
	case User, UserEndpoint:
		key.Kind, key.Subject = subjectKinds[id.User.Kind], id.User.ID
		return id.User.Kind != identity.Unidentified && id.User.ID != ""
	}
	return key.GroupID != ""
}

var subjectKinds = [...]Kind{identity.User: KindUser, identity.Credential: KindCredential, identity.IP: KindIP}

// bucketEndpoint returns what the policy's endpoint buckets are counted per: its own pattern, else the route.
func (p *Policy) bucketEndpoint(id *identity.Identity) string {
	if p.Endpoint != "" {
		return p.Endpoint
	}
	return id.Route
}

// Ref identifies a policy across processes and configs, as usage records it. Two tiers may have policies of one name:
// they count apart, although a tenant that changes its tier goes on in the same bucket.
type Ref struct {
	Name string
	Row  int64 // id of the database row; 0: the policy is in a config

	// Namespace and Tier say which list of a config has the policy; Tier is "" for policies of no tier. A row has neither.
	Namespace, Tier string
}

// Ref returns what identifies the bound's policy.
func (b *Bound) Ref() Ref {
	if b.Policy.Row != 0 {
		return Ref{Name: b.Policy.Name, Row: b.Policy.Row}
	}
	return Ref{Name: b.Policy.Name, Namespace: b.Key.Namespace, Tier: b.Policy.Tier}
}

// String returns the text of a Ref: daily/#12 for a row, else daily/default/enterprise. Neither the name nor the
// namespace of a policy contains a slash. The text of the zero Ref is empty.
func (r Ref) String() string {
	switch {
	case r == Ref{}:
		return ""
	case r.Row != 0:
		return r.Name + "/#" + strconv.FormatInt(r.Row, 10)
	default:
		return r.Name + "/" + r.Namespace + "/" + r.Tier
	}
}

// ParseRef returns the Ref of a text that String has made. Of any other text, Name is what stands before a slash.
func ParseRef(text string) Ref {
	name, list, _ := strings.Cut(text, "/")
	if digits, isRow := strings.CutPrefix(list, "#"); isRow {
		row, _ := strconv.ParseInt(digits, 10, 64) // 0 for a text of another form
		return Ref{Name: name, Row: row}
	}
	namespace, tier, _ := strings.Cut(list, "/")
	return Ref{Name: name, Namespace: namespace, Tier: tier}
}
