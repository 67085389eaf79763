package migrations

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// SQLSTATEs of errors that a migration or a grant resolves.
const (
	undefinedColumn   = "42703"
	undefinedFunction = "42883"
	undefinedTable    = "42P01"
	noPrivilege       = "42501"
	readOnly          = "25006"
)

// Lacks reports whether an error of Postgres names a missing table, column or function. Then the tables are older than
// the program, unless [CheckAhead] has found them newer.
func Lacks(err error) bool {
	failed := new(pgconn.PgError)
	return errors.As(err, &failed) &&
		(failed.Code == undefinedColumn || failed.Code == undefinedFunction || failed.Code == undefinedTable)
}

// PlainText returns the text of an error with the message of Postgres in it, without its severity and SQLSTATE.
func PlainText(err error) string {
	text := err.Error()
	if rejected := new(pgconn.PgError); errors.As(err, &rejected) {
		text = strings.ReplaceAll(text, rejected.Error(), rejected.Message)
	}
	return text
}

// Advice returns what an operator has to do about an error of Postgres that neither time nor a new connection resolves.
// It returns "" for other errors and nil.
func Advice(err error) string {
	failed := new(pgconn.PgError)
	if !errors.As(err, &failed) {
		return ""
	}
	if Lacks(err) {
		return "the tables in Postgres are older than this program: run ratelimit migrate up"
	}
	switch failed.Code {
	case noPrivilege:
		return "the database user lacks a privilege: run the grants in migrations/README.md, also after each migration"
	case wrongPassword, deniedLogin, unknownDatabase:
		return "Postgres denies the login: correct the connection string"
	case readOnly:
		return "the database is read-only: connect to the primary, or turn off default_transaction_read_only"
	}
	return ""
}
