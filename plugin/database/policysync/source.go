package policysync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Source locates Postgres. Exactly one of the fields is set. Postgres's environment variables and password file provide
// what a connection string omits.
type Source struct {
	DSN  string // a connection string: a URL or pairs of key=value. It may hold a password and is never shown
	File string // a file with a connection string. It is read for every connection, so a changed password is used
}

// errDSN contains no part of the string: in one that does not parse, any part may be the password.
var errDSN = errors.New("the connection string cannot be parsed: " +
	"it must be a URL (postgres://user@host/database) or pairs (host=… dbname=…)")

// config returns how to connect now, with further parameters. The connection string may override all parameters. No
// error contains a part of the string.
func (s Source) config(further map[string]string) (*pgx.ConnConfig, error) {
	text := s.DSN
	switch {
	case s.DSN != "" && s.File != "":
		return nil, errors.New("the connection string is given twice: itself and as a file")
	case s.File != "":
		file, err := os.ReadFile(s.File)
		if err != nil {
			return nil, fmt.Errorf("read the file of the connection string: %w", err)
		}
		text = strings.TrimSpace(string(file))
	}
	if text == "" {
		return nil, errors.New("no connection string is given")
	}
	config, err := pgx.ParseConfig(text)
	if err != nil {
		return nil, errDSN
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = connectTime
	}
	given := maps.Clone(config.RuntimeParams)
	maps.Copy(config.RuntimeParams, parameters)
	maps.Copy(config.RuntimeParams, further)
	maps.Copy(config.RuntimeParams, given)
	return config, nil
}

// parameters are the parameters of all sessions. A table that is locked for long costs a retry, not the connection.
// Where commits need not be durable (quick), they do not wait for the disk.
var parameters = map[string]string{
	"application_name": "tenant-rate-limiting",
	"client_encoding":  "UTF8",
	"lock_timeout":     "2s",
}

var quick = map[string]string{"synchronous_commit": "off"}

const (
	// connectTime bounds connecting if the connection string has no connect_timeout.
	connectTime = 5 * time.Second
	// closeTime bounds closing the connection.
	closeTime = time.Second
)

func (s Source) connect(ctx context.Context, further map[string]string) (*pgx.Conn, error) {
	config, err := s.config(further)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

// closeConn closes a connection and waits, for a bounded time, until pgx has cleaned it up.
func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	_ = conn.Close(ctx) // the session is over: an error changes nothing
	select {
	case <-conn.PgConn().CleanupDone():
	case <-ctx.Done():
	}
}

// setStandby records whether the server is a standby, and logs when that changes.
func (s *Sync) setStandby(standby bool) {
	if standby == s.standby {
		return
	}
	s.standby = standby
	s.updateState(func(state *state) { state.Standby = standby })
	if standby {
		s.log.Warn("Postgres is a standby: this node lags as much as the standby; it cannot report, so ratelimit fleet " +
			"does not list it")
		return
	}
	s.log.Info("Postgres is no longer a standby: this node reports")
}

// reportsNothing reports whether this node makes no reports: it has no name, or the server is a standby.
func (s *Sync) reportsNothing() bool { return s.options.Node == "" || s.standby }
