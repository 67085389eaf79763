package cli

import (
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/controlserver"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/internal/setting"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/portal/session"
)

// portalFlags defines the flags of the pages for people.
func (c *call) portalFlags(s *controlserver.Settings) {
	s.Portal = controlserver.Portal{On: true, Idle: session.DefaultIdle}
	c.flags.Func("portal", "`on`: serve pages for operators and tenants at /portal/, on the address of the API; off: do "+
		"not (default on)", func(text string) error { return setting.ParseSwitch(text, &s.Portal.On) })
	c.flags.StringVar(&s.Portal.KeyFile, "portal-key-file", "",
		"a `file` with 32 random bytes, or their base64, that seal the sessions of the portal; processes behind one "+
			"balancer share it (default: a random key, so a restart signs people out)")
	c.flags.Func("portal-idle", "end a session of the portal after this `duration` without a request, up to 12h "+
		"(default 30m)", func(text string) error {
		if err := setting.ParseDuration(text, &s.Portal.Idle); err != nil {
			return err
		}
		if s.Portal.Idle > session.Absolute {
			return fmt.Errorf("must be at most %s", session.Absolute)
		}
		return nil
	})
}
