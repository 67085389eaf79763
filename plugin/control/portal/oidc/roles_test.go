package oidc

import (
	"strings"
	"testing"
)

func TestAClaimGivesTheHighestRoleOfAnOperatorOrOneTenant(t *testing.T) {
	for name, c := range map[string]struct{ claim, role, org, fault string }{
		"admin before viewer": {claim: "ratelimit:viewer ratelimit:admin", role: "admin"},
		"viewer":              {claim: "x ratelimit:viewer", role: "viewer"},
		"operator and tenant": {claim: "ratelimit:tenant:acme ratelimit:tenant:b ratelimit:viewer", role: "viewer"},
		"tenant":              {claim: "ratelimit:tenant:acme", role: "tenant", org: "acme"},
		"tenant twice":        {claim: "ratelimit:tenant:acme ratelimit:tenant:acme", role: "tenant", org: "acme"},
		"tenant with colons":  {claim: "ratelimit:tenant:a:b", role: "tenant", org: "a:b"},
		"any tenant":          {claim: "ratelimit:tenant:*", role: "tenant", org: "*"}, // as every name, only itself
		"two tenants":         {claim: "ratelimit:tenant:acme ratelimit:tenant:b", fault: "several tenants"},
		"no name of a tenant": {claim: "ratelimit:tenant: ratelimit:tenant", fault: "it has none of"},
		"control character":   {claim: "ratelimit:tenant:a\x00b", fault: "it has none of"},
		"other spelling":      {claim: "Ratelimit:admin admin ratelimit:Admin ratelimit:admin:x", fault: "it has none of"},
		"none":                {claim: "", fault: "it has none of ratelimit:admin, ratelimit:viewer and ratelimit"},
	} {
		role, org, err := roleOf(strings.Split(c.claim, " "))
		if role != c.role || org != c.org || (err != nil) != (c.fault != "") {
			t.Errorf("%s: %q %q %v", name, role, org, err)
		} else if err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAClaimIsFoundByItsNameOrAPath(t *testing.T) {
	claims := map[string]any{
		"roles": "a", "https://example.org/roles": []any{"b", 7}, "list": []any{},
		"resource_access": map[string]any{"my.client": map[string]any{"roles": []any{"c", "d"}}}, "number": 7.0,
	}
	for path, want := range map[string]string{
		"roles": "a", "https://example.org/roles": "b", "resource_access.my.client.roles": "c d", "list": "", "number": "",
		"resource_access": "", "resource_access.my": "", "roles.x": "", "": "", ".": "", "missing.roles": "",
	} {
		if got := strings.Join(valuesOf(claims, path), " "); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

func TestAPersonIsNamedAsTheAuditCanKeepIt(t *testing.T) {
	for want, claims := range map[string]map[string]any{
		"ann@example.org":        {"email": "ann@example.org", "preferred_username": "a", "sub": "1"},
		"ann":                    {"email": "a@example.org", "email_verified": false, "preferred_username": "ann"},
		"Jörg Müller":            {"email": "j@a.org", "email_verified": "false", "preferred_username": "Jörg Müller"},
		"1":                      {"email": 7, "preferred_username": "a\u200bb", "sub": "1"},
		"2":                      {"email": " a@example.org", "preferred_username": "a\nb", "sub": "2"},
		"3":                      {"email": "a\u3164", "preferred_username": "a\ufe0f", "sub": "3"},
		strings.Repeat("a", 250): {"email": strings.Repeat("b", 251), "sub": strings.Repeat("a", 250)},
		"":                       {"sub": strings.Repeat("a", 251), "email": "a\xff"},
	} {
		if got := nameOf(claims); got != want {
			t.Errorf("%v: %q, want %q", claims, got, want)
		}
	}
}
