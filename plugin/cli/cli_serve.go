package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/addresses"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/lease"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/controlserver"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/internal/setting"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/metrics"
)

var serveCommand = &command{
	words: "serve",
	brief: "serve the REST API: policies, overrides, limits in force, usage, and decisions",
	about: `Every request needs a token: see ratelimit token create. The API is described at /openapi.json; many processes can serve it
at once. With --config, the plugin's config in a decK file, this process decides as the plugin does, by the same rows and
from the same buckets: then it also serves limits in force, usage, and /v1/ratelimit/check. The file is read once,
at the start: restart the process after a change of the config, or it decides by the old one. (Rows in the database are
followed.) A password of Redis that decK fills in from the environment is read from RATELIMIT_REDIS_PASSWORD, that of
address_redis from RATELIMIT_ADDRESS_REDIS_PASSWORD.

Every flag can be a variable instead, such as RATELIMIT_LISTEN for --listen; a flag wins. The log is JSON lines on
standard error. SIGTERM ends the process: /readyz fails first, running requests finish, and leases are returned.

  ratelimit token create ann --role admin --reason "first admin"
  ratelimit serve --config kong.yml`,
	define: func(c *call) action {
		s, config := c.serveFlags()
		return func(ctx context.Context) error { return c.serve(ctx, s, config) }
	},
}

// serve serves the REST API with the settings and the config of a file, if one is given.
func (c *call) serve(ctx context.Context, s *controlserver.Settings, from *configFlags) error {
	if from.file != "" {
		config, _, err := c.load(from)
		if err != nil {
			return err
		}
		c.fillPasswords(&config.Config)
		s.Config = config
	}
	dsn, source, err := c.dsn()
	if err != nil {
		return err
	}
	s.Database = controlserver.Database{DSN: dsn, File: c.database.file, Name: source, Connect: c.connection}
	return controlserver.Run(ctx, s, c.stderr)
}

// maxNewSubjects bounds --new-subjects.
const maxNewSubjects = 1_000_000

// serveFlags defines the flags of the settings, and of the config that the process decides by.
func (c *call) serveFlags() (*controlserver.Settings, *configFlags) {
	s := &controlserver.Settings{
		LeaseShare: lease.DefaultSharePct, MaxAddresses: addresses.DefaultMost, NewAddresses: addresses.DefaultRate,
		DrainTime: time.Second, ShutdownTime: 40 * time.Second,
	}
	f := c.flags
	f.StringVar(&s.Listen, "listen", "127.0.0.1:8090",
		"the API's `address`, host:port; default 127.0.0.1:8090. One that other machines reach needs TLS, or --insecure-http, and a live token")
	config := c.configFlag()
	f.Lookup("config").Usage = "the decK `file` with the plugin's config, for decisions, what is in force, and usage; read once, at the start; default: none, and these answer 503"
	f.Lookup("plugin-route").Usage = "the `route` whose config it is, by name; needed when the file has several"
	f.StringVar(&s.TLS.Cert, "tls-cert", "",
		"a PEM `file` with the certificate of the API, and those above it; a changed file is read within a second")
	f.StringVar(&s.TLS.Key, "tls-key", "", "a PEM `file` with its private key")
	f.StringVar(&s.TLS.ClientCA, "client-ca", "",
		"a PEM `file` with the authorities that clients' certificates must come from, in addition to tokens; default: no certificates are required")
	f.BoolVar(&s.InsecureHTTP, "insecure-http", false,
		"serve other machines without TLS, because a proxy in front terminates it")
	f.StringVar(&s.MetricsListen, metrics.Setting, "127.0.0.1:9543",
		"the `address` of /metrics, /healthz and /readyz, without tokens; default 127.0.0.1:9543; off: none")
	f.BoolVar(&s.MetricsRemote, metrics.RemoteSetting, false,
		"allow an address of the metrics that other machines can reach")
	c.capacityFlags(s)
	f.Func(
		"log-level",
		"a `level`: debug, info, warn or error; default info, which has a line for each request",
		func(text string) error {
			return setting.ParseLevel(text, &s.LogLevel)
		},
	)
	f.Func(
		"snapshot-dir",
		"a `directory`, of this process alone, for the last rows of the database: with them it decides after a start without the database; default: off, and until rows are loaded decisions answer 503",
		func(text string) error {
			if s.SnapshotDir = text; text == "off" {
				s.SnapshotDir = ""
			}
			return nil
		},
	)
	f.Func(
		"drain-time",
		"after SIGTERM keep answering new requests for this `time`, so that a load balancer notices; default 1s",
		func(text string) error {
			return setting.ParseDuration(text, &s.DrainTime)
		},
	)
	f.Func("shutdown-time", "how much `time` running requests then have to finish; default 40s", func(text string) error {
		return setting.ParseDuration(text, &s.ShutdownTime)
	})
	c.databaseFlag()
	c.check(c.fromEnvironment)
	c.check(func() error {
		if err := s.Validate(); err != nil {
			return wrong("%v", err)
		}
		return nil
	})
	return s, config
}

// capacityFlags defines the flags of leases, and of how many buckets callers may create.
func (c *call) capacityFlags(s *controlserver.Settings) {
	f := c.flags
	f.Func(
		"lease-share",
		"`percent` of a limit that all nodes together may have taken ahead, at most 5; default 2; 0: every decision asks Redis. The same as the nodes'",
		func(text string) error {
			if err := setting.ParseInt(text, 0, &s.LeaseShare); err != nil || s.LeaseShare > lease.MaxSharePct {
				return fmt.Errorf("must be a whole number from 0 to %d", lease.MaxSharePct)
			}
			return nil
		},
	)
	f.Func("max-addresses", fmt.Sprintf("the `most` addresses that have buckets in Redis by this process at once, "+
		"as the nodes' -max-addresses; default %d; 0: any number", addresses.DefaultMost), func(text string) error {
		return setting.ParseInt(text, 0, &s.MaxAddresses)
	})
	f.Func("new-addresses", fmt.Sprintf("how `many` addresses a second that it has not seen lately get such buckets, "+
		"as the nodes' -new-addresses; default %d; 0: any number", addresses.DefaultRate), func(text string) error {
		return setting.ParseInt(text, 0, &s.NewAddresses)
	})
	f.Func(
		"new-subjects",
		"how `many` users, credentials and addresses that it has not named lately a tenant's token may spend for, a second, from 1 to 1000000; default 100, and ten seconds' worth at once",
		func(text string) error {
			if err := setting.ParseInt(text, 1, &s.NewSubjects); err != nil || s.NewSubjects > maxNewSubjects {
				return fmt.Errorf("must be a whole number from 1 to %d", maxNewSubjects)
			}
			return nil
		},
	)
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
