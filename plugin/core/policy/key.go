package policy

import (
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
	GroupID   string
	Subject   string
	Endpoint  string // scopes with an endpoint beside a tenant or user only
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

// KeysOf returns the bucket keys of bounds.
func KeysOf(bounds []Bound) []Key {
	keys := make([]Key, len(bounds))
	for i := range keys {
		keys[i] = bounds[i].Key
	}
	return keys
}

// FillKey fills in the policy's bucket for an identity. It reports false if the identity lacks a name that the scope is
// counted per.
func (p *Policy) FillKey(namespace string, id *identity.Identity, key *Key) bool {
	// A policy for some endpoint has a bucket of its own, whatever its scope: the policy of the same name for the other
	// endpoints may have another window, and one bucket cannot hold the state of both.
	key.Namespace, key.Policy, key.Endpoint = namespace, p.Name, p.Endpoint
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
