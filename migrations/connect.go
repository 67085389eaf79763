package migrations

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// SQLSTATEs of a denied login, which need another connection string or a change of the server.
const (
	wrongPassword   = "28P01"
	deniedLogin     = "28000"
	unknownDatabase = "3D000"
)

// ConnectFault returns one line for a failed connection to Postgres: the failure, and the flag, variable or setting to
// correct, which is source. It returns "" for other errors. The line never contains the password.
func ConnectFault(err error, source string) string {
	failed := new(pgconn.ConnectError)
	if !errors.As(err, &failed) {
		return ""
	}
	answer := new(pgconn.PgError)
	if !errors.As(failed, &answer) {
		return fmt.Sprintf("cannot connect to Postgres at %s: %s (check the address in %s)",
			strings.Join(addresses(failed.Config), ", "), connectCause(failed), source)
	}
	user, database := failed.Config.User, failed.Config.Database
	switch {
	case answer.Code == wrongPassword && failed.Config.Password == "":
		return fmt.Sprintf("Postgres requires a password for user %q, and none is set: add it to %s", user, source)
	case answer.Code == wrongPassword:
		return fmt.Sprintf("Postgres denied the password of user %q: correct it in %s", user, source)
	case answer.Code == deniedLogin:
		return fmt.Sprintf("Postgres denied the login of user %q (%s): correct the user in %s, or pg_hba.conf", user,
			answer.Message, source)
	case answer.Code == unknownDatabase:
		return fmt.Sprintf("Postgres has no database %q: correct the name in %s", database, source)
	}
	return "Postgres denied the connection: " + answer.Message
}

// addresses returns the servers that a connection tries, each once.
func addresses(c *pgconn.Config) (list []string) {
	for _, f := range append([]*pgconn.FallbackConfig{{Host: c.Host, Port: c.Port}}, c.Fallbacks...) {
		if _, next := pgconn.NetworkAddress(f.Host, f.Port); !slices.Contains(list, next) {
			list = append(list, next)
		}
	}
	return list
}

// connectCause returns why no server was reached, without the addresses, which pgx repeats for each attempt.
func connectCause(err error) string {
	var (
		number  syscall.Errno
		unknown *net.DNSError
		timeout net.Error
	)
	switch {
	case errors.As(err, &number) && !number.Timeout():
		return number.Error()
	case errors.As(err, &unknown) && unknown.IsNotFound:
		return "no such host"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "no answer in time"
	}
	text := strings.TrimSpace(err.Error())
	text = text[strings.LastIndexByte(text, '\n')+1:]
	if _, cause, found := strings.Cut(text, "): "); found {
		text = cause
	}
	return strings.TrimSpace(text)
}
