// Package oidc signs people in to the portal by OpenID Connect: the authorization code flow with PKCE (S256), for a
// confidential client or a public one.
//
// [Flow.ServeSignIn] sends a browser to the provider and gets it back. Between the two, a sealed cookie of
// its own for each sign-in keeps the nonce, the verifier of PKCE and the page to return to, so that two tabs do not
// disturb each other and a sign-in ends in the browser where it began. The callback exchanges the code, verifies the ID
// token, and reads the role from a claim. Package portal starts the session, which is not kept here.
//
// The provider's configuration is fetched when it is first needed and kept for an hour. A provider that is unavailable
// is therefore no failure of the process: sign-in says so, and works again once the provider does.
package oidc
