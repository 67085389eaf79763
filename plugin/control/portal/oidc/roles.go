package oidc

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/portal"
)

const (
	// actorPrefix begins the names of people that a provider has signed in, which no token's name does.
	actorPrefix = "oidc:"
	// rolePrefix begins the values of the claim that are for this portal. All others are ignored.
	rolePrefix = "ratelimit:"
	// maxName bounds the bytes of a name, which is at most 256 bytes with its prefix in the audit.
	maxName = 250
	// maxOrg bounds the bytes of a tenant's name.
	maxOrg = 128
)

// roleOf returns the role that the values of a claim give. An operator's role takes precedence over a tenant's, and
// admin over viewer. The error says why there is none.
func roleOf(values []string) (role, org string, err error) {
	var orgs []string
	for _, value := range values {
		switch name, ok := strings.CutPrefix(value, rolePrefix); {
		case !ok:
		case name == portal.RoleAdmin:
			return portal.RoleAdmin, "", nil
		case name == portal.RoleViewer:
			role = portal.RoleViewer
		default:
			found, ok := strings.CutPrefix(name, portal.RoleTenant+":")
			if !ok || !isOrg(found) {
				continue
			}
			if len(orgs) == 0 || orgs[0] != found {
				orgs = append(orgs, found)
			}
		}
	}
	switch {
	case role != "":
		return role, "", nil
	case len(orgs) == 1:
		return portal.RoleTenant, orgs[0], nil
	case len(orgs) > 1:
		return "", "", fmt.Errorf("it names several tenants, %q and %q: one person can see one tenant", orgs[0], orgs[1])
	}
	return "", "", errors.New("it has none of ratelimit:admin, ratelimit:viewer and ratelimit:tenant:{org}")
}

func isOrg(text string) bool {
	return text != "" && len(text) <= maxOrg && utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl)
}

// valuesOf returns the texts of a claim: of a string or of an array. It is empty if the claim is missing or of another
// type.
func valuesOf(claims map[string]any, path string) []string {
	switch value := lookUp(claims, path).(type) {
	case string:
		return []string{value}
	case []any:
		var texts []string
		for _, one := range value {
			if text, ok := one.(string); ok {
				texts = append(texts, text)
			}
		}
		return texts
	}
	return nil
}

// lookUp returns a claim by its name or by a path of names with dots, or nil. Names may have dots themselves, such as
// https://example.org/roles.
func lookUp(claims map[string]any, path string) any {
	if value, ok := claims[path]; ok {
		return value
	}
	for i, c := range path {
		if c != '.' {
			continue
		}
		if inner, ok := claims[path[:i]].(map[string]any); ok {
			if value := lookUp(inner, path[i+1:]); value != nil {
				return value
			}
		}
	}
	return nil
}

// nameOf returns the name of a person: the email address unless it is unverified, else preferred_username, else sub. A
// name that the audit cannot keep is passed over. It is "" if there is none.
func nameOf(claims map[string]any) string {
	for _, claim := range []string{"email", "preferred_username", "sub"} {
		if claim == "email" && isUnverified(claims["email_verified"]) {
			continue
		}
		if name, ok := claims[claim].(string); ok && isName(name) {
			return name
		}
	}
	return ""
}

// isUnverified reports whether the claim email_verified is false. Some providers write it as a text.
func isUnverified(value any) bool { return value == false || value == "false" }

// isName reports whether the audit can keep a name: it has no space at an end and nothing invisible, so that two names
// that look alike are alike.
func isName(text string) bool {
	return text != "" && len(text) <= maxName && utf8.ValidString(text) && text == strings.TrimSpace(text) &&
		!strings.ContainsFunc(text, func(r rune) bool {
			return !unicode.IsPrint(r) || unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
		})
}
