package migrations

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// The SQLSTATEs of what a migration, or a grant, would mend.
const (
	undefinedColumn   = "42703"
	undefinedFunction = "42883"
	undefinedTable    = "42P01"
	noPrivilege       = "42501"
	readOnly          = "25006"
)

// Lacks reports whether an error of Postgres is about a table, column or function that is not there. The tables are
// older than the program then, unless [CheckAhead] has found them newer.
func Lacks(err error) bool {
	refused := new(pgconn.PgError)
	return errors.As(err, &refused) &&
		(refused.Code == undefinedColumn || refused.Code == undefinedFunction || refused.Code == undefinedTable)
}

// Advice tells what an operator has to do about an error of Postgres that stays until it is done: no waiting
// and no new connection mends it. It is "" for all other errors, and without one.
func Advice(err error) string {
	refused := new(pgconn.PgError)
	if !errors.As(err, &refused) {
		return ""
	}
	if Lacks(err) {
		return "the tables in Postgres are older than this program: run ratelimit migrate up"
	}
	switch refused.Code {
	case noPrivilege:
		return "the database user lacks a right: the grants are in migrations/README.md, and are repeated after a migration"
	case wrongPassword, deniedLogin, unknownDatabase:
		return "Postgres denies the login: correct the connection string"
	case readOnly:
		return "the database is read-only: a standby, or default_transaction_read_only is on"
	}
	return ""
}
