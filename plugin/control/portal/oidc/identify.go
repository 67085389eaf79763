package oidc

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"

	gooidc "github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/portal"
)

// identify exchanges a code for the claims of a person, and returns who that is.
func (f *Flow) identify(ctx context.Context, code string, a attempt) (portal.Caller, *fault) {
	found, err := f.discovery.get(ctx)
	if err != nil {
		return portal.Caller{}, discoveryFault(err)
	}
	select {
	case f.exchanges <- struct{}{}:
		defer func() { <-f.exchanges }()
	default:
		return portal.Caller{}, &fault{http.StatusServiceUnavailable, busyText, errors.New("too many exchanges at once")}
	}
	secret, err := f.secret()
	if err != nil {
		return portal.Caller{}, &fault{http.StatusServiceUnavailable, setupText, err}
	}
	ctx = gooidc.ClientContext(ctx, f.discovery.client)
	token, err := f.config(found, secret).Exchange(ctx, code, oauth2.VerifierOption(a.Verifier))
	if err != nil {
		return portal.Caller{}, exchangeFault(err)
	}
	claims, err := f.verify(ctx, found, token, a.Nonce)
	if err != nil {
		return portal.Caller{}, invalid(err)
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
	if _, err := parseEndpoint(found.provider.UserInfoEndpoint()); err != nil {
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
	for name, value := range more {
		if _, ok := claims[name]; !ok {
			claims[name] = value
		}
	}
	return nil
}

// callerOf returns the name and role of a person.
func (f *Flow) callerOf(claims map[string]any) (portal.Caller, *fault) {
	name := nameOf(claims)
	if name == "" {
		const text = "The identity provider names you in a way that this portal cannot record: it gives no email, " +
			"preferred_username or sub of at most 250 bytes without invisible characters. Sign in with a token."
		return portal.Caller{}, &fault{http.StatusForbidden, text, errors.New("no claim has a name")}
	}
	role, org, err := roleOf(valuesOf(claims, f.RolesClaim))
	if err != nil {
		text := fmt.Sprintf("You are %s, but the claim %s gives you no role here: %v. Ask the people who run the "+
			"identity provider, or sign in with a token.", name, f.RolesClaim, err)
		return portal.Caller{}, &fault{http.StatusForbidden, text, fmt.Errorf("claim %s of %s: %w", f.RolesClaim, name, err)}
	}
	return portal.Caller{Name: actorPrefix + name, Role: role, Org: org}, nil
}
