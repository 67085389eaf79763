package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/pflag"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/addresses"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/lease"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/envoy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/forward"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/portal/oidc"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/portal/session"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/server"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/kafka"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/leader/abuse"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
)

var serveCommand = &command{
	words: "serve", brief: "serve the REST API: policies, overrides, limits in force, usage and decisions",
	about: `Every request needs a token: see ratelimit token create. The API is described at /openapi.json. Several
processes can serve it at the same time.

With --config, the process also serves limits in force, usage and /v1/ratelimit/check: it decides as the plugin does,
by the same policies and from the same buckets. The config is read once at startup, so restart the process after
changing it; changes in the database take effect while it runs. A Redis password that is not in the decK file is read
from RATELIMIT_REDIS_PASSWORD.

Every flag can be set by an environment variable, such as RATELIMIT_LISTEN for --listen; flags take precedence. The
log is written to standard error as JSON lines. On SIGTERM, /readyz fails, running requests finish, leases are
returned, and the process exits.

  ratelimit token create ann --role admin --reason "first admin"
  ratelimit serve --config kong.yml`,
	define: func(c *call) action {
		s, config := c.serveFlags()
		return func(ctx context.Context) error { return c.serve(ctx, s, config) }
	},
}

// serve serves the REST API with the settings and the config of a file, if one is given.
func (c *call) serve(ctx context.Context, s *server.Settings, from *configFlags) error {
	if from.file != "" {
		config, _, err := c.load(from)
		if err != nil {
			return err
		}
		c.fillPassword(&config.Config)
		s.Config = config
	}
	if s.NoDatabase {
		return server.Run(ctx, s, c.stderr)
	}
	dsn, source, err := c.dsn()
	if err != nil {
		return err
	}
	s.Database = server.Database{DSN: dsn, File: c.database.file, Name: source, Connect: c.connection}
	if s.Keeper, err = c.keeperDatabase(&s.Database); err != nil {
		return err
	}
	return server.Run(ctx, s, c.stderr)
}

// keeperDatabase returns how the leader reaches the database: by its own flags, else as the API does. It is nil if the
// process does not lead.
func (c *call) keeperDatabase(otherwise *server.Database) (*server.Database, error) {
	switch c.keeper {
	case databaseFlags{}:
		return otherwise, nil
	case databaseFlags{dsn: "off"}, databaseFlags{file: "off"}:
		return nil, nil
	}
	const flag = "--keeper-database"
	dsn, name, err := c.keeper.read(flag)
	if err == nil {
		_, err = parseDSN(dsn, name)
	}
	connect := func() (*pgxpool.Config, error) {
		dsn, source, err := c.keeper.read(flag)
		if err != nil {
			return nil, err
		}
		return parseDSN(dsn, source)
	}
	return &server.Database{Name: name, Connect: connect}, err
}

func (c *call) keeperFlags() {
	c.flags.StringVar(&c.keeper.dsn, "keeper-database", "",
		"the connection `string` of a login with the rights of keeper, for the housekeeping: one process at a time "+
			"unpacks the usage that nodes report, does what ratelimit tidy does, and sends events to webhooks; off leaves "+
			"that to ratelimit tidy, and sends no events "+
			"(default: the same login as --database)")
	c.flags.StringVar(&c.keeper.file, "keeper-database-file", "", "read that connection string from this `file`")
}

// serveFlags defines the flags of the settings, and of the config that the process decides by.
func (c *call) serveFlags() (*server.Settings, *configFlags) {
	s := &server.Settings{
		LeaseShare: lease.DefaultSharePct, MaxAddresses: addresses.DefaultMost, NewAddresses: addresses.DefaultRate,
		Usage: true, DenialRecent: true, DrainTime: time.Second, ShutdownTime: 40 * time.Second,
	}
	f := c.flags
	f.StringVar(&s.Listen, "listen", "127.0.0.1:8090",
		"the `address` of the API, host:port (default 127.0.0.1:8090); "+
			"if other machines can reach it, TLS (or --insecure-http) and a live token are required")
	config := c.configFlag()
	f.Lookup("config").Usage = "the decK `file` with the plugin's config, for decisions, limits in force and usage " +
		"(default: none; those endpoints return 503)"
	f.Lookup("plugin-route").Usage = routeUsage
	c.tlsFlags(s)
	f.StringVar(&s.MetricsListen, metrics.Setting, "127.0.0.1:9543",
		"the `address` of /metrics, /healthz and /readyz, which need no token; off disables them (default 127.0.0.1:9543)")
	f.BoolVar(&s.MetricsRemote, metrics.RemoteSetting, false,
		"allow a --metrics-listen address that other machines can reach")
	c.capacityFlags(s)
	f.Func("log-level", "the `level` of the log: debug, info, warn or error (default info, which logs every request)",
		reads(process.ParseLevel, &s.LogLevel))
	f.Func("snapshot-dir", "a `directory`, not shared with other processes, to save the database's rows in: the process "+
		"can then decide when it starts while the database is down (default off: decisions return 503 until rows are "+
		"loaded)", func(text string) error {
		if s.SnapshotDir = text; text == "off" {
			s.SnapshotDir = ""
		}
		return nil
	})
	c.reportFlags(s)
	f.Func("drain-time",
		"keep accepting requests for this `duration` after SIGTERM, so that load balancers notice (default 1s)",
		reads(process.ParseDuration, &s.DrainTime))
	f.Func("shutdown-time", "after the drain time, give running requests this `duration` to finish (default 40s)",
		reads(process.ParseDuration, &s.ShutdownTime))
	c.portalFlags(s)
	c.doorFlags(s)
	c.kafkaFlags(s)
	c.webhookTargetFlags(&s.Webhooks)
	c.databaseFlag()
	f.Lookup("database").Usage += "; off: the process decides by --config alone, for --envoy-listen and --forward-auth, " +
		"and serves no REST API and no portal"
	c.keeperFlags()
	c.check(c.fromEnvironment)
	c.abuseFlags(s)
	c.check(func() error { return c.checkNoDatabase(s) })
	c.check(func() error {
		if err := s.Validate(config.file != ""); err != nil {
			return wrong("%v", err)
		}
		return nil
	})
	return s, config
}

// needDatabase has how the names of flags begin that have no use without a database.
var needDatabase = []string{
	"abuse", "denial-", "kafka-", "keeper-", "new-subjects", "portal", "snapshot-dir", "usage", "webhook-",
}

// checkNoDatabase switches off what needs a database if --database is off. The error names the flags that ask for it.
func (c *call) checkNoDatabase(s *server.Settings) error {
	s.NoDatabase = c.database.file == "" && cmp.Or(c.database.dsn, c.getenv(databaseVariable)) == "off"
	if !s.NoDatabase {
		return nil
	}
	off := map[string]bool{
		"abuse": s.Abuse.Mode == abuse.Off, "denial-recent": !s.DenialRecent, "keeper-database": c.keeper.dsn == "off",
		"keeper-database-file": c.keeper.file == "off", "portal": !s.Portal.On, "snapshot-dir": s.SnapshotDir == "",
		"usage": !s.Usage,
	}
	var wrongs []string
	c.flags.Visit(func(f *pflag.Flag) {
		begins := func(prefix string) bool { return strings.HasPrefix(f.Name, prefix) }
		if slices.ContainsFunc(needDatabase, begins) && !off[f.Name] {
			wrongs = append(wrongs, "--"+f.Name)
		}
	})
	if len(wrongs) > 0 {
		return wrong("%s: only with a database, and --database is off: remove this, or give a connection string",
			strings.Join(wrongs, ", "))
	}
	s.Usage, s.DenialRecent, s.Portal.On = false, false, false
	return nil
}

// reportFlags defines the flags of what the process reports of its own decisions.
func (c *call) reportFlags(s *server.Settings) {
	c.flags.Func("usage", "`on`: count the requests and tokens of every tenant that this process decides, and report "+
		"them to the database every 5 s; off: do not (default on)",
		reads(process.ParseSwitch, &s.Usage))
	c.flags.Func("denial-recent", "`on`: report a bounded sample of the denials that this process decides to the "+
		"database every 5 s, for people to read; off: do not (default on)",
		reads(process.ParseSwitch, &s.DenialRecent))
	c.flags.StringVar(&s.DenialSaltFile, "denial-salt-file", "",
		"a `file` with at least 16 random bytes, from which the hashes of users and addresses in it are made, like "+
			"-denial-salt-file of the nodes (default: random bytes for each process)")
}

// tlsFlags defines the flags of encrypted connections to the API.
func (c *call) tlsFlags(s *server.Settings) {
	f := c.flags
	f.StringVar(&s.TLS.Cert, "tls-cert", "",
		"a PEM `file` with the certificate chain of the API; changes are picked up within a second")
	f.StringVar(&s.TLS.Key, "tls-key", "", "a PEM `file` with the private key of --tls-cert")
	f.StringVar(&s.TLS.ClientCA, "client-ca", "",
		"a PEM `file` with CA certificates: clients must have a certificate signed by one of them, in addition to a token "+
			"(default: no client certificates)")
	f.BoolVar(&s.InsecureHTTP, "insecure-http", false,
		"allow other machines to connect without TLS, because a proxy in front terminates it")
	f.Func("trusted-proxies", "a comma-separated list of `networks`, such as 10.1.0.0/16, of proxies in front: behind "+
		"them a client's address is the right-most one of X-Forwarded-For that is in none of these networks (default "+
		"none: it is that of the connection)", reads(server.ParseProxies, &s.TrustedProxies))
}

// parsesFile returns the setter of a flag that names a file, which parse reads into to.
func parsesFile[T any](parse func(text []byte) (T, error), to *T) func(file string) error {
	return func(file string) error {
		text, err := os.ReadFile(file)
		if err == nil {
			*to, err = parse(text)
		}
		return err
	}
}

// doorFlags defines the flags of the doors for other proxies than Kong.
func (c *call) doorFlags(s *server.Settings) {
	f := c.flags
	f.Func("forward-auth", "a YAML `file` that says which headers name tenants, users and endpoints: proxies of "+
		"--forward-auth-proxies may ask at /v1/ratelimit/forward-auth, as docs/doors.md says; it requires --config "+
		"(default: none may)", parsesFile(forward.ParseMapping, &s.Forward))
	f.Func("forward-auth-proxies", "a comma-separated list of `networks`, such as 10.1.2.3/32, of the proxies that may "+
		"ask by forward auth, and whose X-Forwarded-For counts there; --trusted-proxies may not ask (default: none)",
		reads(server.ParseProxies, &s.ForwardProxies))
	f.StringVar(&s.Envoy.Listen, "envoy-listen", "",
		"the `address` of Envoy's rate limit protocol (gRPC), host:port, which requires --config and --envoy-config; if other "+
			"machines can reach it, --envoy-client-ca (or --envoy-insecure) is required (default: none)")
	f.Func("envoy-config", "a YAML `file` that says how descriptors name tenants, users and endpoints: see docs/doors.md",
		parsesFile(envoy.ParseMapping, &s.Envoy.Mapping))
	s.Envoy.TLS.Prefix = "envoy-"
	f.StringVar(&s.Envoy.TLS.Cert, "envoy-tls-cert", "",
		"a PEM `file` with the certificate chain of that address; changes are picked up within a second")
	f.StringVar(&s.Envoy.TLS.Key, "envoy-tls-key", "", "a PEM `file` with the private key of --envoy-tls-cert")
	f.StringVar(&s.Envoy.TLS.ClientCA, "envoy-client-ca", "",
		"a PEM `file` with CA certificates: proxies must have a certificate signed by one of them (default: any connects)")
	f.BoolVar(&s.Envoy.Insecure, "envoy-insecure", false,
		"allow other machines to connect without a certificate, because only proxies can reach the address")
}

// kafkaFlags defines the flags of the Kafka that events are sent to, which nodes have too.
func (c *call) kafkaFlags(s *server.Settings) {
	for _, row := range kafka.Settings() {
		c.flags.Func(row.Name, row.Usage+" (default "+row.Default+")", func(text string) error {
			return row.Set(&s.Kafka.Options, text)
		})
	}
	for _, topic := range []struct {
		name, value, about string
		to                 *string
	}{
		{"kafka-updates-topic", "policy.updates", "changes of policies, tiers, tenants and overrides", &s.Kafka.UpdatesTopic},
		{"kafka-notices-topic", "ratelimit.notices", "quota thresholds and steps against abuse", &s.Kafka.NoticesTopic},
	} {
		*topic.to = topic.value
		c.flags.Func(topic.name, "the `topic` of events about "+topic.about+" (default "+topic.value+")",
			reads(kafka.ParseTopic, topic.to))
	}
}

// capacityFlags defines the flags of leases, and of how many buckets callers may create.
func (c *call) capacityFlags(s *server.Settings) {
	f := c.flags
	c.wholeFlag(&s.LeaseShare, 0, lease.MaxSharePct, "lease-share",
		"the `percent` of a limit that all nodes together may hold on lease, up to 5; 0 turns leases off; "+
			"use the same value as the nodes (default 2)")
	f.Func("max-addresses", fmt.Sprintf("the maximum `number` of addresses with their own buckets at the same time, "+
		"like -max-addresses of the nodes; 0: unlimited (default %d)", addresses.DefaultMost), func(text string) error {
		return process.ParseInt(text, 0, &s.MaxAddresses)
	})
	f.Func("new-addresses", fmt.Sprintf("the maximum `number` of new addresses per second that get their own buckets, "+
		"like -new-addresses of the nodes; 0: unlimited (default %d)", addresses.DefaultRate), func(text string) error {
		return process.ParseInt(text, 0, &s.NewAddresses)
	})
	c.wholeFlag(&s.NewSubjects, 1, 1_000_000, "new-subjects",
		"the maximum `number` of new users, credentials, addresses and reservations per second that a tenant's token may "+
			"spend for, with bursts of ten times that, from 1 to 1000000 (default 100)")
}

// fromEnvironment sets the flags that were not given to what the environment says. The database is named by one of two.
func (c *call) fromEnvironment() error {
	given := map[string]bool{}
	c.flags.Visit(func(f *pflag.Flag) { given[f.Name] = true })
	given["database"] = given["database"] || given["database-file"] // its variable is read where the flags are
	given["database-file"] = given["database"]
	given["database"] = true
	var wrongs []string
	c.flags.VisitAll(func(f *pflag.Flag) {
		variable := "RATELIMIT_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		text := c.getenv(variable)
		if given[f.Name] || f.Hidden || text == "" {
			return
		}
		if err := new(pflag.InvalidValueError); errors.As(c.flags.Set(f.Name, text), &err) {
			wrongs = append(wrongs, fmt.Sprintf("%s: %q: %s", variable, text, valueFault(err)))
		}
	})
	if len(wrongs) > 0 {
		return wrong("%s", strings.Join(wrongs, "; "))
	}
	return nil
}

// abuseSwitch is the variable that turns abuse detection off, whatever --abuse says.
const abuseSwitch = "ABUSE_DETECTION_ENABLED"

func (c *call) abuseFlags(s *server.Settings) {
	s.Abuse = abuse.Options{Mode: abuse.Shadow, DeniedShare: abuse.DefaultDeniedShare}
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
	share := int(100 * s.Abuse.DeniedShare)
	c.wholeFlag(&share, 50, 100, "abuse-denied-share", "flag a tenant if its limits deny at least this `percent` of its "+
		"requests of 5 minutes, 50 to 100 (default 80)")
	c.complete("abuse", "off", "shadow", "enforce")
	c.check(func() error {
		s.Abuse.DeniedShare = float64(share) / 100
		text := c.getenv(abuseSwitch)
		switch strings.ToLower(text) {
		case "":
		case "false", "off", "0", "no":
			s.Abuse.Mode = abuse.Off
		case "true", "on", "1", "yes":
		default:
			return wrong("%s: %q: must be true or false", abuseSwitch, text)
		}
		return nil
	})
}

func (c *call) portalFlags(s *server.Settings) {
	s.Portal = server.Portal{On: true, Idle: session.DefaultIdle}
	c.flags.Func("portal", "`on`: serve pages for operators and tenants at /portal/, on the address of the API; off: do "+
		"not (default on)", reads(process.ParseSwitch, &s.Portal.On))
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
	c.flags.Func("portal-name", "the `name` in the head of its pages (default Rate limits)", s.Portal.Brand.SetName)
	c.flags.Func("portal-logo", "a `file` with the logo beside the name, svg, png, webp or jpg (default none)",
		s.Portal.Brand.ReadLogo)
	c.flags.Func("portal-accent", "the `color` of buttons, links and graphs, such as #1f5fbf; where its contrast is too "+
		"low to be read it becomes darker, or in the dark scheme lighter (default #1f5fbf)", s.Portal.Brand.SetAccent)
	c.flags.Func("portal-support", "the `URL` where people ask for help, https or mailto, linked on all pages (default "+
		"none)", s.Portal.Brand.SetSupport)
	c.oidcFlags(&s.Portal.OIDC)
}

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
