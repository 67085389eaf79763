package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/envoy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/forward"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/portal/session"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/kafka"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/webhook"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/leader/abuse"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/routeconfig"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
)

// Settings configure the process that serves the REST API.
type Settings struct {
	Listen         string
	TLS            TLSFiles
	InsecureHTTP   bool
	TrustedProxies Proxies // in front of the REST API and the portal
	MetricsListen  string  // "": none
	MetricsRemote  bool
	NewSubjects    int
	LeaseShare     int // percent; 0: nothing is leased
	MaxAddresses   int // 0: any number
	NewAddresses   int // a second; 0: any number
	LogLevel       slog.Level
	SnapshotDir    string // "": none
	Usage          bool   // report what the process decides
	DenialRecent   bool   // report a sample of the denials that it decides
	DenialSaltFile string // of the hashes of users in it; "": a random salt
	DrainTime      time.Duration
	ShutdownTime   time.Duration
	Webhooks       webhook.Targets // that webhooks may call

	Abuse abuse.Options // of the leader; its Log is not used

	Config         *routeconfig.Config // for decisions; nil: the process decides nothing
	Portal         Portal
	Envoy          Envoy
	Forward        *forward.Mapping // of forward auth; nil: there is none
	ForwardProxies Proxies          // that may ask; not TrustedProxies, through which any client reaches the process
	Database       Database
	// NoDatabase means that there is none: the doors decide by the config alone. Then Database is not used, and Usage,
	// DenialRecent, Portal, Kafka and Keeper must be zero.
	NoDatabase bool
	Kafka      Kafka
	Keeper     *Database // of a login with the rights of keeper, which unpacks usage and tidies; nil: neither is done
}

// Kafka locates the Kafka that events are sent to, and names its topics.
type Kafka struct {
	kafka.Options        // without brokers: none are sent
	UpdatesTopic  string // of changes of policies
	NoticesTopic  string // of everything else that the control plane reports
}

// Envoy configures the door for Envoy's rate limit protocol.
type Envoy struct {
	Listen   string // "": there is no such door
	Mapping  envoy.Mapping
	TLS      TLSFiles
	Insecure bool
}

// validate returns an error that names the flag of a setting that is malformed or unsafe.
func (e *Envoy) validate() error {
	switch err := checkListen(e.Listen); {
	case e.Listen == "" && (e.Mapping != nil || e.TLS.Cert+e.TLS.Key+e.TLS.ClientCA != "" || e.Insecure):
		return errors.New("--envoy-listen: is required with other flags of Envoy, such as 127.0.0.1:8081")
	case e.Listen == "":
		return nil
	case err != nil:
		return fmt.Errorf("--envoy-listen: %q: %w", e.Listen, err)
	case e.Mapping == nil:
		return errors.New("--envoy-listen: descriptors name nothing without a mapping: give --envoy-config")
	case isPublic(e.Listen) && e.TLS.ClientCA == "" && !e.Insecure:
		return fmt.Errorf("--envoy-listen: other machines reach %s, and each can spend the limits of all tenants: give "+
			"--envoy-tls-cert, --envoy-tls-key and --envoy-client-ca, or --envoy-insecure if only proxies can connect", e.Listen)
	}
	return e.TLS.validate()
}

// Database locates the database.
type Database struct {
	DSN     string                          // a connection string
	File    string                          // a file with the connection string, read for every connection; "": none
	Name    string                          // the flag or variable of either, for errors
	Connect func() (*pgxpool.Config, error) // reads the connection string
}

// Validate returns an error that names the flag of a setting that is malformed or unsafe. decides: Config will be set.
func (s *Settings) Validate(decides bool) error {
	if err := checkListen(s.Listen); err != nil {
		return fmt.Errorf("--listen: %q: %w", s.Listen, err)
	}
	if s.MetricsListen == "off" {
		s.MetricsListen = ""
	}
	if err := metrics.CheckAddress(s.MetricsListen, s.MetricsRemote, "--"); err != nil {
		return err
	}
	if err := s.Kafka.Validate(); err != nil {
		return fmt.Errorf("settings of Kafka: %w", err)
	}
	if err := s.Portal.OIDC.Validate(); err != nil {
		return err
	}
	if err := s.TLS.validate(); err != nil {
		return err
	}
	switch {
	case s.TLS.Cert != "" && s.InsecureHTTP:
		return errors.New("give either --insecure-http or --tls-cert")
	case isPublic(s.Listen) && s.TLS.Cert == "" && !s.InsecureHTTP:
		return fmt.Errorf("--listen: other machines reach %s, and what they send would be unencrypted: "+
			"give --tls-cert and --tls-key, or --insecure-http if a proxy in front terminates TLS", s.Listen)
	}
	switch none := s.Forward == nil && s.Envoy.Listen == ""; {
	case s.NoDatabase && none:
		return errors.New("--database: off leaves only the doors for other proxies: give --envoy-listen or --forward-auth, " +
			"or a connection string")
	case (s.Forward == nil) != (len(s.ForwardProxies) == 0):
		return errors.New("--forward-auth: only proxies may ask: name their addresses by --forward-auth-proxies, beside it")
	case !none && !decides:
		return errors.New("--config: is required with --envoy-listen and --forward-auth: nothing is decided without it")
	}
	return s.Envoy.validate()
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

// isPublic reports whether other machines reach an address. It resolves no name, because that may change; only
// localhost counts as this machine.
func isPublic(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err != nil || !session.IsLoopback(host)
}
