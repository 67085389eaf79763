package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/migrations"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const (
	databaseVariable = "RATELIMIT_DATABASE"
	actorVariable    = "RATELIMIT_ACTOR"
	// connectTime is how long connecting may take, unless the connection string says otherwise.
	connectTime = 5 * time.Second
)

// databaseFlags name the database.
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

// parseDSN returns how the database of a connection string is reached.
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

// hasDatabase reports whether a flag or the environment names a database.
func (c *call) hasDatabase() bool {
	return c.database.dsn != "" || c.database.file != "" || c.getenv(databaseVariable) != ""
}

// read returns the connection string of a flag, or of the flag that names a file, and which of them has it; "": neither.
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
