package oidc

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	gooidc "github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
)

// identify exchanges a code for the claims of a person, and returns who that is.
func (f *Flow) identify(ctx context.Context, code string, a attempt) (api.Caller, *Fault) {
	found, err := f.discover(ctx, math.MaxInt64)
	if err != nil {
		return api.Caller{}, discoveryFault(err)
	}
	secret, err := f.secret()
	if err != nil {
		return api.Caller{}, &Fault{http.StatusServiceUnavailable, setupText, err}
	}
	ctx = gooidc.ClientContext(ctx, f.client)
	client := found.client
	client.ClientSecret = secret
	token, err := client.Exchange(ctx, code, oauth2.VerifierOption(a.Verifier))
	if err != nil {
		return api.Caller{}, exchangeFault(err)
	}
	claims, err := f.verify(ctx, found, token, a.Nonce)
	if err != nil {
		return api.Caller{}, invalid(err)
	}
	return f.callerOf(claims)
}

// verify returns the claims of the ID token of an answer, and those of the provider's userinfo that it lacks.
func (f *Flow) verify(
	ctx context.Context, found *configuration, token *oauth2.Token, nonce string,
) (map[string]any, error) {
	raw, ok := token.Extra("id_token").(string)
	if !ok {
		return nil, errors.New("the answer has no ID token")
	}
	verified, err := found.verifier.Verify(ctx, raw)
	if err != nil {
		return nil, err
	}
	claims := map[string]any{}
	if err := verified.Claims(&claims); err != nil {
		return nil, fmt.Errorf("read the claims: %w", err)
	}
	azp, hasParty := claims["azp"]
	switch {
	case subtle.ConstantTimeCompare([]byte(verified.Nonce), []byte(nonce)) != 1:
		return nil, errors.New("the ID token has another nonce")
	case hasParty && azp != f.ClientID, !hasParty && len(verified.Audience) > 1:
		return nil, fmt.Errorf("the ID token is for the audience %q and the party %v", verified.Audience, azp)
	case verified.IssuedAt.After(f.Now().Add(skew)):
		return nil, fmt.Errorf("the ID token was issued at %v, in the future: compare the clocks", verified.IssuedAt)
	case verified.Subject == "":
		return nil, errors.New("the ID token has no sub")
	}
	hasRoles := lookUp(claims, f.RolesClaim) != nil
	hasName := claims["email"] != nil || claims["preferred_username"] != nil
	if hasRoles && hasName || found.provider.UserInfoEndpoint() == "" {
		return claims, nil
	}
	if err := f.addUserInfo(ctx, found, token, claims); err != nil && !hasRoles {
		return nil, err
	}
	return claims, nil
}

// addUserInfo adds the claims of userinfo that an ID token lacks: many providers keep its tokens small.
func (f *Flow) addUserInfo(
	ctx context.Context, found *configuration, token *oauth2.Token, claims map[string]any,
) error {
	if err := checkEndpoint(found.provider.UserInfoEndpoint()); err != nil {
		return fmt.Errorf("the provider's userinfo_endpoint: %w", err)
	}
	more := map[string]any{}
	info, err := found.provider.UserInfo(ctx, oauth2.StaticTokenSource(token))
	if err == nil {
		err = info.Claims(&more)
	}
	switch {
	case err != nil:
		return fmt.Errorf("read userinfo: %w", err)
	case info.Subject != claims["sub"]:
		return errors.New("userinfo is of another subject than the ID token")
	}
	maps.Copy(more, claims)
	maps.Copy(claims, more)
	return nil
}

// callerOf returns the name and role of a person.
func (f *Flow) callerOf(claims map[string]any) (api.Caller, *Fault) {
	name := nameOf(claims)
	if name == "" {
		const text = "The identity provider names you in a way that this portal cannot record: it gives no email, " +
			"preferred_username or sub of at most 250 bytes without invisible characters. Sign in with a token."
		return api.Caller{}, &Fault{http.StatusForbidden, text, errors.New("no claim has a name")}
	}
	who, err := roleOf(valuesOf(claims, f.RolesClaim))
	if err != nil {
		text := fmt.Sprintf("You are %s, but the claim %s gives you no role here: %v. Ask the people who run the "+
			"identity provider, or sign in with a token.", name, f.RolesClaim, err)
		return api.Caller{}, &Fault{http.StatusForbidden, text, fmt.Errorf("claim %s of %s: %w", f.RolesClaim, name, err)}
	}
	who.Token = api.PersonPrefix + name
	return who, nil
}

const (
	// rolePrefix begins the values of the claim that are for this portal. All others are ignored.
	rolePrefix = "ratelimit:"
	// maxName bounds the bytes of a name, which is at most 256 bytes with its prefix in the audit.
	maxName = 250
	// maxOrg bounds the bytes of a tenant's name.
	maxOrg = 128
)

// roleOf returns a caller with the role that the values of a claim give. An operator's role takes precedence over a
// tenant's, and admin over viewer. The error says why there is none.
func roleOf(values []string) (api.Caller, error) {
	var orgs []string
	for _, value := range values {
		org, ok := strings.CutPrefix(value, rolePrefix+string(api.Tenant)+":")
		if ok && isOrg(org) && !slices.Contains(orgs, org) {
			orgs = append(orgs, org)
		}
	}
	switch {
	case slices.Contains(values, rolePrefix+string(api.Admin)):
		return api.Caller{Role: api.Admin}, nil
	case slices.Contains(values, rolePrefix+string(api.Viewer)):
		return api.Caller{Role: api.Viewer}, nil
	case len(orgs) == 1:
		return api.Caller{Role: api.Tenant, Org: orgs[0]}, nil
	case len(orgs) > 1:
		const text = "it names several tenants, %q and %q: one person can see one tenant"
		return api.Caller{}, fmt.Errorf(text, orgs[0], orgs[1])
	}
	return api.Caller{}, errors.New("it has none of ratelimit:admin, ratelimit:viewer and ratelimit:tenant:{org}")
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
		if verified := claims["email_verified"]; claim == "email" && (verified == false || verified == "false") {
			continue // some providers write it as a text
		}
		if name, ok := claims[claim].(string); ok && isName(name) {
			return name
		}
	}
	return ""
}

// isName reports whether the audit can keep a name: it has no space at an end and nothing invisible, so that two names
// that look alike are alike.
func isName(text string) bool {
	return text != "" && len(text) <= maxName && utf8.ValidString(text) && text == strings.TrimSpace(text) &&
		!strings.ContainsFunc(text, func(r rune) bool {
			return !unicode.IsPrint(r) || unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
		})
}
