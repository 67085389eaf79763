package cli

import (
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/portal/oidc"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/portal/session"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/server"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
)

// portalFlags defines the flags of the pages for people.
func (c *call) portalFlags(s *server.Settings) {
	s.Portal = server.Portal{On: true, Idle: session.DefaultIdle}
	c.flags.Func("portal", "`on`: serve pages for operators and tenants at /portal/, on the address of the API; off: do "+
		"not (default on)", func(text string) error { return process.ParseSwitch(text, &s.Portal.On) })
	c.flags.StringVar(&s.Portal.KeyFile, "portal-key-file", "",
		"a `file` with 32 random bytes, or their base64, that seal the sessions of the portal; processes behind one "+
			"balancer share it (default: a random key, so a restart signs people out)")
	c.flags.Func("portal-idle", "end a session of the portal after this `duration` without a request, up to 12h "+
		"(default 30m)", func(text string) error {
		if err := process.ParseDuration(text, &s.Portal.Idle); err != nil {
			return err
		}
		if s.Portal.Idle > session.Absolute {
			return fmt.Errorf("must be at most %s", session.Absolute)
		}
		return nil
	})
	c.oidcFlags(&s.Portal.OIDC)
}

// oidcFlags defines the flags of signing in by OpenID Connect.
func (c *call) oidcFlags(s *oidc.Settings) {
	f := c.flags
	f.StringVar(&s.Issuer, "portal-oidc-issuer", "", "the `URL` of an OpenID Connect provider that signs people in to "+
		"the portal, exactly as its tokens have it (default: none, people sign in with tokens)")
	f.StringVar(&s.ClientID, "portal-oidc-client-id", "", "the `id` that the provider has for this portal")
	f.StringVar(&s.SecretFile, "portal-oidc-client-secret-file", "", "a `file` with the secret of that client; it is "+
		"read at each sign-in (default: none, for a public client)")
	f.StringVar(&s.RedirectURL, "portal-oidc-redirect-url", "", "the `URL` that the provider sends browsers back to: the "+
		"address of the portal for browsers, with the path "+oidc.CallbackPath)
	f.StringVar(&s.RolesClaim, "portal-oidc-roles-claim", oidc.DefaultRolesClaim, "the `claim` with a person's roles, or "+
		"a path such as realm_access.roles; its values are ratelimit:admin, ratelimit:viewer and ratelimit:tenant:{org} "+
		"(default roles)")
	f.StringVar(&s.Scopes, "portal-oidc-scopes", oidc.DefaultScopes, "the `scopes` that a sign-in requests, separated by "+
		"spaces (default openid email profile)")
}
