package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/addresses"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/lease"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/metrics"
)

var serveCommand = &command{
	words: "serve", brief: "serve the REST API: policies, overrides, limits in force, usage, and decisions",
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
		s := c.serveFlags()
		return func(ctx context.Context) error { return c.serve(ctx, s) }
	},
}

// serveSettings are those of the process that serves the REST API.
type serveSettings struct {
	listen        string
	config        *configFlags
	tls           tlsFiles
	insecureHTTP  bool
	metricsListen string // "": none
	metricsRemote bool
	newSubjects   int
	leaseShare    int // percent; 0: nothing is leased
	maxAddresses  int // 0: any number
	newAddresses  int // a second; 0: any number
	logLevel      slog.Level
	snapshotDir   string // "": none
	drainTime     time.Duration
	shutdownTime  time.Duration
}

// maxNewSubjects bounds --new-subjects.
const maxNewSubjects = 1_000_000

// serveFlags define the settings.
func (c *call) serveFlags() *serveSettings {
	s := &serveSettings{
		leaseShare: lease.DefaultSharePct, maxAddresses: addresses.DefaultMost, newAddresses: addresses.DefaultRate,
		drainTime: time.Second, shutdownTime: 40 * time.Second,
	}
	f := c.flags
	f.StringVar(&s.listen, "listen", "127.0.0.1:8090", "the API's `address`, host:port; default 127.0.0.1:8090. One that other machines reach needs TLS, or --insecure-http, and a live token")
	s.config = c.configFlag()
	f.Lookup("config").Usage = "the decK `file` with the plugin's config, for decisions, what is in force, and usage; read once, at the start; default: none, and these answer 503"
	f.Lookup("plugin-route").Usage = "the `route` whose config it is, by name; needed when the file has several"
	f.StringVar(&s.tls.cert, "tls-cert", "", "a PEM `file` with the certificate of the API, and those above it; a changed file is read within a second")
	f.StringVar(&s.tls.key, "tls-key", "", "a PEM `file` with its private key")
	f.StringVar(&s.tls.clientCA, "client-ca", "", "a PEM `file` with the authorities that clients' certificates must come from, in addition to tokens; default: no certificates are required")
	f.BoolVar(&s.insecureHTTP, "insecure-http", false, "serve other machines without TLS, because a proxy in front terminates it")
	f.StringVar(&s.metricsListen, metrics.Setting, "127.0.0.1:9543", "the `address` of /metrics, /healthz and /readyz, without tokens; default 127.0.0.1:9543; off: none")
	f.BoolVar(&s.metricsRemote, metrics.RemoteSetting, false, "allow an address of the metrics that other machines can reach")
	f.Func("lease-share", "`percent` of a limit that all nodes together may have taken ahead, at most 5; default 2; 0: every decision asks Redis. The same as the nodes'", func(text string) error {
		if err := parseInt(text, 0, &s.leaseShare); err != nil || s.leaseShare > lease.MaxSharePct {
			return fmt.Errorf("must be a whole number from 0 to %d", lease.MaxSharePct)
		}
		return nil
	})
	f.Func("max-addresses", fmt.Sprintf("the `most` addresses that have buckets in Redis by this process at once, "+
		"as the nodes' -max-addresses; default %d; 0: any number", addresses.DefaultMost), func(text string) error {
		return parseInt(text, 0, &s.maxAddresses)
	})
	f.Func("new-addresses", fmt.Sprintf("how `many` addresses a second that it has not seen lately get such buckets, "+
		"as the nodes' -new-addresses; default %d; 0: any number", addresses.DefaultRate), func(text string) error {
		return parseInt(text, 0, &s.newAddresses)
	})
	f.Func("new-subjects", "how `many` users, credentials and addresses that it has not named lately a tenant's token may spend for, a second, from 1 to 1000000; default 100, and ten seconds' worth at once", func(text string) error {
		if err := parseInt(text, 1, &s.newSubjects); err != nil || s.newSubjects > maxNewSubjects {
			return fmt.Errorf("must be a whole number from 1 to %d", maxNewSubjects)
		}
		return nil
	})
	f.Func("log-level", "a `level`: debug, info, warn or error; default info, which has a line for each request", func(text string) error {
		return parseLevel(text, &s.logLevel)
	})
	f.Func("snapshot-dir", "a `directory`, of this process alone, for the last rows of the database: with them it decides after a start without the database; default: off, and until rows are loaded decisions answer 503", func(text string) error {
		if s.snapshotDir = text; text == "off" {
			s.snapshotDir = ""
		}
		return nil
	})
	f.Func("drain-time", "after SIGTERM keep answering new requests for this `time`, so that a load balancer notices; default 1s", func(text string) error {
		return parseDuration(text, &s.drainTime)
	})
	f.Func("shutdown-time", "how much `time` running requests then have to finish; default 40s", func(text string) error {
		return parseDuration(text, &s.shutdownTime)
	})
	c.databaseFlag()
	c.check(c.fromEnvironment)
	c.check(s.validate)
	return s
}

// fromEnvironment sets the flags that were not given to what the environment says. The database is named by one of two.
func (c *call) fromEnvironment() error {
	given := map[string]bool{}
	c.flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	given["database"] = given["database"] || given["database-file"] // its variable is read where the flags are
	given["database-file"] = given["database"]
	given["database"] = true
	var wrongs []string
	c.flags.VisitAll(func(f *flag.Flag) {
		variable := "RATELIMIT_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		text := c.getenv(variable)
		if given[f.Name] || text == "" {
			return
		}
		if err := c.flags.Set(f.Name, text); err != nil {
			wrongs = append(wrongs, fmt.Sprintf("%s: %q: %s", variable, text, valueFault(err.Error())))
		}
	})
	if len(wrongs) > 0 {
		return wrong("%s", strings.Join(wrongs, "; "))
	}
	return nil
}

// validate tells what is wrong with the settings, and what nobody should want.
func (s *serveSettings) validate() error {
	if err := checkListen(s.listen); err != nil {
		return wrong("--listen: %q: %v", s.listen, err)
	}
	if s.metricsListen == "off" {
		s.metricsListen = ""
	}
	if err := metrics.CheckAddress(s.metricsListen, s.metricsRemote, "--"); err != nil {
		return wrong("%s", err)
	}
	switch {
	case (s.tls.cert == "") != (s.tls.key == ""):
		return wrong("give --tls-cert and --tls-key together")
	case s.tls.clientCA != "" && s.tls.cert == "":
		return wrong("--client-ca: client certificates require TLS: give --tls-cert and --tls-key")
	case s.tls.cert != "" && s.insecureHTTP:
		return wrong("give either --insecure-http or --tls-cert")
	case s.public() && s.tls.cert == "" && !s.insecureHTTP:
		return wrong("--listen: other machines reach %s, and tokens would be sent unencrypted: give --tls-cert and --tls-key, or --insecure-http if a proxy in front terminates TLS", s.listen)
	}
	return nil
}

func checkListen(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return errors.New("must be host:port, such as 127.0.0.1:8090")
	}
	return nil
}

// public tells whether other machines reach the address. A name is not resolved: what it stands for may change, so
// localhost alone passes for this machine.
func (s *serveSettings) public() bool {
	host, _, err := net.SplitHostPort(s.listen)
	if err != nil || host == "localhost" {
		return err != nil
	}
	ip, err := netip.ParseAddr(host)
	return err != nil || !ip.Unmap().IsLoopback()
}
