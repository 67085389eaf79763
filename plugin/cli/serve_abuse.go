package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/server"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/leader/abuse"
)

// abuseSwitch is the variable that turns abuse detection off, whatever --abuse says.
const abuseSwitch = "ABUSE_DETECTION_ENABLED"

// abuseFlags defines the flags of abuse detection.
func (c *call) abuseFlags(s *server.Settings) {
	s.Abuse = abuse.Options{Mode: abuse.Shadow, Config: abuse.Default()}
	c.flags.Func("abuse", "the `mode` of abuse detection, in the process that leads: shadow records what it would do; "+
		"enforce makes overrides; off scores nothing, and ends its overrides at once. ABUSE_DETECTION_ENABLED=false is "+
		"off too (default shadow)", func(text string) error {
		if s.Abuse.Mode = abuse.Mode(text); !slices.Contains(abuse.Modes, s.Abuse.Mode) {
			return fmt.Errorf("must be off, shadow or enforce")
		}
		return nil
	})
	c.flags.Func("abuse-exempt-tiers", "a comma-separated `list` of tiers whose tenants abuse detection leaves alone "+
		"(default none)", func(text string) error {
		s.Abuse.ExemptTiers = strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
		return nil
	})
	share := int(100 * s.Abuse.Config.DeniedShare)
	c.wholeFlag(&share, 50, 100, "abuse-denied-share", "flag a tenant if its limits deny at least this `percent` of its "+
		"requests of 5 minutes, 50 to 100 (default 80)")
	c.complete("abuse", "off", "shadow", "enforce")
	c.check(func() error {
		s.Abuse.Config.DeniedShare = float64(share) / 100
		text := c.getenv(abuseSwitch)
		if text == "" {
			return nil
		}
		on := true
		switch strings.ToLower(text) {
		case "false", "off", "0", "no":
			on = false
		case "true", "on", "1", "yes":
		default:
			return wrong("%s: %q: must be true or false", abuseSwitch, text)
		}
		if !on {
			s.Abuse.Mode = abuse.Off
		}
		return nil
	})
}
