package identity_test

import (
	"encoding/base64"
	"slices"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
)

// gateway has all facts of one request. It records which of them are read.
type gateway struct {
	identity.Request
	rounds []identity.Facts
}

// identify reads facts until the identity is complete.
func (g *gateway) identify(t interface{ Fatalf(string, ...any) }, rules *identity.Rules) identity.Identity {
	var request identity.Request
	var id identity.Identity
	for {
		missing := rules.Identify(&request, &id)
		switch {
		case missing == 0:
			return id
		case missing&request.Known != 0:
			t.Fatalf("needs %s although %s was read", names(missing), names(request.Known))
		case len(g.rounds) == 3 && !rules.NeedPreflight, len(g.rounds) == 4:
			t.Fatalf("round %d, for %s", len(g.rounds)+1, names(missing))
		}
		g.rounds = append(g.rounds, missing)
		g.read(missing, &request)
	}
}

// read fills in exactly the facts that are named.
func (g *gateway) read(facts identity.Facts, r *identity.Request) {
	r.Known |= facts
	for fact, copyOver := range map[identity.Facts]func(){
		identity.ConsumerFact:   func() { r.Consumer = g.Consumer },
		identity.CredentialFact: func() { r.CredentialID = g.CredentialID },
		identity.IPFact:         func() { r.IP = g.IP },
		identity.TargetFact:     func() { r.Method, r.Path = g.Method, g.Path },
		identity.RouteFact:      func() { r.Route = g.Route },
		identity.TokenFact:      func() { r.Token = g.Token },
		identity.HeaderFacts:    func() { r.Headers = g.Headers },
		identity.CallerFacts:    func() { r.Caller = g.Caller },
		identity.PreflightFacts: func() { r.Origin, r.RequestedMethod = g.Origin, g.RequestedMethod },
	} {
		if facts&fact != 0 {
			copyOver()
		}
	}
}

// names returns the names of facts, for failing tests.
func names(facts identity.Facts) []string {
	var list []string
	for i, name := range []string{
		"consumer", "credential", "ip", "target", "route", "token", "headers", "content-type",
		"request-id", "caller", "preflight",
	} {
		if facts&(1<<i) != 0 {
			list = append(list, name)
		}
	}
	return list
}

// wantRounds checks which facts were read, round by round.
func (g *gateway) wantRounds(t *testing.T, want ...identity.Facts) {
	t.Helper()
	if !slices.Equal(g.rounds, want) {
		t.Errorf("facts read: %v", rounds(g.rounds))
		t.Errorf("want:       %v", rounds(want))
	}
}

func rounds(facts []identity.Facts) [][]string {
	list := make([][]string, len(facts))
	for i := range facts {
		list[i] = names(facts[i])
	}
	return list
}

// tenantRules read the tenant from sources and nothing else.
func tenantRules(t interface{ Fatalf(string, ...any) }, sources ...string) *identity.Rules {
	rules := &identity.Rules{NeedTenant: true, CostHeader: -1, IPv6Prefix: 64}
	rules.Tenant = parse(t, rules, sources...)
	rules.Compile(0)
	return rules
}

func parse(t interface{ Fatalf(string, ...any) }, rules *identity.Rules, sources ...string) []identity.Source {
	parsed, err := identity.ParseSources(sources, &rules.Headers)
	if err != nil {
		t.Fatalf("parse sources: %v", err)
	}
	return parsed
}

// token returns a JWT with the given claims, in JSON, and a signature that must not matter.
func token(header, claims string) string {
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(header)) + "." + encode([]byte(claims)) + "." + encode([]byte("signature"))
}

const hs256 = `{"alg":"HS256","typ":"JWT"}`
