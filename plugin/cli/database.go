package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/migrations"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
)

const (
	databaseVariable = "RATELIMIT_DATABASE"
	actorVariable    = "RATELIMIT_ACTOR"
	// connectTime is how long connecting may take, unless the connection string says otherwise.
	connectTime = 5 * time.Second
)

type databaseFlags struct{ dsn, file string }

func (c *call) databaseFlag() {
	c.flags.StringVar(&c.database.dsn, "database", "",
		"the Postgres connection `string`, such as postgres://user@host/name or \"host=… dbname=…\" "+
			"(default $"+databaseVariable+")")
	c.flags.StringVar(&c.database.file, "database-file", "",
		"read the connection string from this `file`, so that no password appears in the process list")
}

// connection returns how the database is reached. Its errors do not quote the connection string, which holds a
// password.
func (c *call) connection() (*pgxpool.Config, error) {
	dsn, source, err := c.dsn()
	if err != nil {
		return nil, err
	}
	if c.source == "" { // later connections of serve are made side by side
		c.source = source
	}
	return parseDSN(dsn, source)
}

func parseDSN(dsn, source string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		// The cause quotes parts of what it could not read, and a password may be among them.
		return nil, wrong(
			"%s: must be a connection string such as postgres://user@host:5432/name, with special characters "+
				"of a password percent-encoded, or host=… dbname=…", source)
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectTime
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "ratelimit"
	}
	config.MaxConns = 2
	config.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		// Times are shown in UTC, whatever the time zone of this machine.
		conn.TypeMap().RegisterType(&pgtype.Type{
			Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC},
		})
		return nil
	}
	return config, nil
}

// dsn returns the connection string, and where it is from.
func (c *call) dsn() (dsn, source string, err error) {
	if dsn, source, err = c.database.read("--database"); err != nil || dsn != "" {
		return dsn, source, err
	}
	if dsn = c.getenv(databaseVariable); dsn == "" {
		return "", "", wrong("no database configured: use --database, --database-file or the environment variable %s",
			databaseVariable)
	}
	return dsn, databaseVariable, nil
}

func (c *call) hasDatabase() bool {
	return c.database.dsn != "" || c.database.file != "" || c.getenv(databaseVariable) != ""
}

// read returns the connection string of a flag, or of the flag that names a file, and which of them has it; "":
// neither.
func (f databaseFlags) read(flag string) (dsn, source string, err error) {
	fileFlag := flag + "-file"
	switch {
	case f.dsn != "" && f.file != "":
		return "", "", wrong("use either %s or %s, not both", flag, fileFlag)
	case f.file == "":
		return f.dsn, flag, nil
	}
	text, err := os.ReadFile(f.file)
	if err != nil {
		return "", "", wrong("%s: %v", fileFlag, err)
	}
	if dsn = strings.TrimSpace(string(text)); dsn == "" {
		return "", "", wrong("%s: %s is empty", fileFlag, f.file)
	}
	return dsn, fileFlag + " " + f.file, nil
}

// open returns the repository, and what closes its connections.
func (c *call) open(ctx context.Context) (*rows.DB, func(), error) {
	config, err := c.connection()
	if err != nil {
		return nil, nil, err
	}
	return c.openWith(ctx, config)
}

// openToChange is open for a change by the person who calls the program.
func (c *call) openToChange(ctx context.Context) (s *rows.DB, closeDB func(), by rows.Change, err error) {
	config, err := c.connection()
	if err == nil {
		by, err = c.newChange(config)
	}
	if err == nil {
		s, closeDB, err = c.openWith(ctx, config)
	}
	return s, closeDB, by, err
}

func (c *call) openWith(ctx context.Context, config *pgxpool.Config) (*rows.DB, func(), error) {
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, nil, fmt.Errorf("open the database: %w", err)
	}
	err = migrations.CheckReady(ctx, pool)
	if ahead := new(migrations.AheadError); errors.As(err, &ahead) {
		c.warn("%v", ahead)
		c.ahead = true
	} else if err != nil {
		pool.Close()
		return nil, nil, err
	}
	c.pool = pool
	return rows.New(pool), pool.Close, nil
}

// actor returns who makes a change.
func (c *call) actor(config *pgx.ConnConfig) string {
	for _, name := range [...]string{c.change.actor, c.getenv(actorVariable), c.login()} {
		if name != "" {
			return name
		}
	}
	return config.User
}

// doorFlags say where the REST API is: in this process on a database, or at a server.
type doorFlags struct{ server, tokenFile, caFile string }

// doorFlag defines where the REST API is.
func (c *call) doorFlag() {
	c.databaseFlag()
	c.flags.StringVar(&c.door.server, "server", "",
		"instead of a database, use the REST API at this `url`, such as https://limits.example.com")
	c.flags.StringVar(&c.door.tokenFile, "token-file", "", "the `file` with the token for --server")
	c.flags.StringVar(&c.door.caFile, "ca-file", "",
		"a `file` with the certificates in PEM that --server is trusted by (default: those of this machine)")
	c.check(func() error {
		switch remote := c.door.server != ""; {
		case !remote && (c.door.tokenFile != "" || c.door.caFile != ""):
			return wrong("--token-file and --ca-file are for --server")
		case remote && (c.database.dsn != "" || c.database.file != ""):
			return wrong("use either --server or a database, not both")
		case remote && c.flags.Lookup("config") != nil && c.given("config"):
			return wrong("--config: with --server, the server compares with its own config")
		case remote && c.change.actor != "":
			return wrong("--actor: with --server the actor is the token")
		case remote && c.door.tokenFile == "":
			return wrong("--token-file is required with --server: ratelimit token create makes a token")
		}
		return nil
	})
}

// asks defines the flags of a command that reads by the REST API, and connects it for do.
func (c *call) asks(do func(ctx context.Context, rest *answers.Client) error) action {
	c.doorFlag()
	c.outputFlag()
	return func(ctx context.Context) error { return c.withDoor(ctx, do) }
}

// withDoor connects the REST API for the time of do.
func (c *call) withDoor(ctx context.Context, do func(ctx context.Context, rest *answers.Client) error) error {
	if c.door.server != "" {
		rest, err := c.remoteAPI()
		if err != nil {
			return err
		}
		return c.remoteFault(do(ctx, rest))
	}
	store, closeStore, by, err := c.openToChange(ctx)
	if err != nil {
		return err
	}
	defer closeStore()
	caller := api.Caller{Token: by.Actor, Role: api.Admin, Direct: true}
	log := &doorLog{Handler: slog.DiscardHandler}
	rest, err := c.ownAPI(ctx, store, log)
	if err != nil {
		return err
	}
	err = do(ctx, &answers.Client{Transport: answers.Served(func(w http.ResponseWriter, r *http.Request) {
		rest.ServeAs(w, r, caller)
	})})
	p := answers.ProblemOf(err)
	switch {
	case p != nil && p.Status >= http.StatusInternalServerError && log.err != nil:
		return log.err
	case err == nil && log.err != nil:
		c.warn("%s: %v", log.text, log.err)
	}
	return c.problemFault(err)
}

// ownAPI returns the REST API of this process.
func (c *call) ownAPI(ctx context.Context, store *rows.DB, log *doorLog) (*api.Server, error) {
	o := api.Options{Version: process.Version, Rows: store, Log: slog.New(log), Webhooks: anywhere, Now: c.now}
	if c.configure != nil {
		if err := c.configure(ctx, &o); err != nil {
			return nil, err
		}
	}
	return api.New(o)
}

// doorLog keeps the last error that the API in this process logs, which the command reports.
type doorLog struct {
	slog.Handler
	text string
	err  error
}

// Enabled implements [slog.Handler].
func (*doorLog) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements [slog.Handler].
func (l *doorLog) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok {
			l.text, l.err = r.Message, err
		}
		return true
	})
	return nil
}

// problemFault returns the problem of an answer as errors, one for each fault. A faulty flag is a wrong call.
func (c *call) problemFault(err error) error {
	p := answers.ProblemOf(err)
	switch {
	case p == nil:
		return err
	case len(p.Errors) == 0:
		return errors.New(cmp.Or(p.Detail, p.Title, http.StatusText(p.Status)))
	}
	var faults []error
	for _, f := range p.Errors {
		place, name, _ := strings.Cut(f.Location, ".")
		switch flag := strings.ReplaceAll(name, "_", "-"); {
		case place == "query" && name != "force" && c.flags.Lookup(flag) != nil:
			return wrong("--%s: %s", flag, f.Message)
		case place == "query":
			name = "--" + flag
		case name == "":
			faults = append(faults, errors.New(f.Message))
			continue
		}
		faults = append(faults, fmt.Errorf("%s: %s", name, f.Message))
	}
	if p.Status != http.StatusUnprocessableEntity && p.Detail != "" {
		faults = append([]error{errors.New(p.Detail)}, faults...)
	}
	return errors.Join(faults...)
}

// remoteTime bounds how long a server may take to be reached; it has six times as long to wait for nodes and to answer.
const remoteTime = 10 * time.Second

func (c *call) remoteAPI() (*answers.Client, error) {
	base, err := serverURL(c.door.server)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(c.door.tokenFile)
	if err != nil {
		return nil, wrong("--token-file: %v", err)
	}
	token := strings.TrimSpace(string(text))
	if len(strings.Fields(token)) != 1 {
		return nil, wrong("--token-file: %s must hold one token and no more: ratelimit token create makes one",
			c.door.tokenFile)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = (&net.Dialer{Timeout: remoteTime}).DialContext
	transport.TLSHandshakeTimeout, transport.ResponseHeaderTimeout = remoteTime, 6*remoteTime
	if c.door.caFile != "" {
		text, err := os.ReadFile(c.door.caFile)
		if err != nil {
			return nil, wrong("--ca-file: %v", err)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: x509.NewCertPool()}
		if !transport.TLSClientConfig.RootCAs.AppendCertsFromPEM(text) {
			return nil, wrong("--ca-file: %s has no certificate in PEM", c.door.caFile)
		}
	}
	return &answers.Client{Base: base, Token: token, Transport: transport}, nil
}

// serverURL returns the address of a server without a slash at its end. A token goes unencrypted to this machine only.
func serverURL(text string) (string, error) {
	at, err := url.Parse(text)
	if err != nil || at.Host == "" || at.User != nil || strings.Trim(at.Path, "/")+at.RawQuery+at.Fragment != "" {
		return "", wrong("--server: must be https:// and a host, with a port if need be, and no more")
	}
	ip, err := netip.ParseAddr(at.Hostname())
	isLocal := strings.EqualFold(at.Hostname(), "localhost") || err == nil && ip.IsLoopback()
	if at.Scheme != "https" && !(at.Scheme == "http" && isLocal) {
		return "", wrong("--server: must begin with https://: http:// would send the token unencrypted, and is only for " +
			"this machine, such as http://127.0.0.1:8090")
	}
	return at.Scheme + "://" + at.Host, nil
}

// remoteFault returns the error of a call of a server, with what to do about it.
func (c *call) remoteFault(err error) error {
	p := answers.ProblemOf(err)
	untrusted := new(tls.CertificateVerificationError)
	switch {
	case errors.As(err, &untrusted):
		return fmt.Errorf("%s: its certificate is not trusted: %w: --ca-file names the certificates to trust",
			c.door.server, untrusted.Err)
	case p == nil:
		return err
	case p.Foreign:
		return fmt.Errorf("%s does not answer as the REST API of ratelimit serve: status %d", c.door.server, p.Status)
	case p.Status == http.StatusUnauthorized:
		return fmt.Errorf("--token-file %s: %s: ratelimit token create makes a new one", c.door.tokenFile, p.Detail)
	case p.Status == http.StatusForbidden:
		return fmt.Errorf("%s: use a token with the role admin, or viewer to read, which ratelimit token create makes",
			p.Detail)
	}
	return c.problemFault(err)
}
