// Package oidctest starts a real OpenID provider for a test, npm's oidc-provider in its own Node process on a free port
// of the loopback, and signs in by its forms as a browser would.
//
// A test without the provider fails and is never skipped. Node comes from Debian if it is missing, and the packages of
// provider/package-lock.json from npm: see package npmtest.
package oidctest
