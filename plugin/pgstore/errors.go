package pgstore

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// NotFoundError is a row that is not there.
type NotFoundError struct {
	What string // as people name it: policy daily of tier gold
}

func (e *NotFoundError) Error() string { return e.What + " does not exist" }

// ConflictError is a write that was made with another row in mind than the one that is there. Nothing was written.
type ConflictError struct {
	What    string // as people name it
	Problem string // what is there instead, and what to do

	Revision int64 // that the row has; 0: there is no row, or it is not about its revision
}

func (e *ConflictError) Error() string { return e.What + ": " + e.Problem }

// InvalidError is a value that a row may not have. Nothing was written.
type InvalidError struct {
	What    string // as people name the row; empty: the only one of the call
	Field   string // as the row and the plugin's config name it; empty: the row as a whole
	Problem string // what would be right
}

func (e *InvalidError) Error() string {
	text := e.Problem
	if e.Field != "" {
		text = e.Field + ": " + text
	}
	if e.What != "" {
		text = e.What + ": " + text
	}
	return text
}

// DeclinedError is a set that its Accept has declined. Nothing was written.
type DeclinedError struct{ Err error }

func (e *DeclinedError) Error() string { return e.Err.Error() }

// Unwrap returns the error of Accept.
func (e *DeclinedError) Unwrap() error { return e.Err }

// UncertainError reports a write with an unknown outcome: the connection ended before the answer to its
// COMMIT. It is safe to send again with the same Idempotency, and otherwise after a look at what is there.
type UncertainError struct{ Err error }

func (e *UncertainError) Error() string {
	return "the connection ended during the commit, so it is not known whether this was written: " + e.Err.Error()
}

// Unwrap is how the connection ended.
func (e *UncertainError) Unwrap() error { return e.Err }

// uncertain is the error of a COMMIT. What Postgres has rejected was not written; the outcome of anything else is
// unknown.
func uncertain(err error) error {
	rejected := new(pgconn.PgError)
	isRejected := errors.As(err, &rejected) && rejected.SeverityUnlocalized == "ERROR"
	if isRejected || errors.Is(err, pgx.ErrTxCommitRollback) {
		return err
	}
	return &UncertainError{err}
}

// IsReadOnly reports whether an error is that of a database that takes no writes: a standby, or one that is set so.
func IsReadOnly(err error) bool {
	refused := new(pgconn.PgError)
	return errors.As(err, &refused) && refused.Code == codeReadOnly
}

// The classes of SQLSTATE that are about a value: data exceptions, and integrity constraints.
const (
	classData      = "22"
	classIntegrity = "23"
	codeUnique     = "23505"
	codeReadOnly   = "25006"
)

// fail is the error of an operation; nil stays nil. The errors of this package stay as they are; what Postgres rejects
// becomes one of them; the rest is wrapped with what was being done. No text holds a password: pgx leaves it out.
func fail(doing string, err error) error {
	if err == nil {
		return nil
	}
	var (
		missing  *NotFoundError
		conflict *ConflictError
		invalid  *InvalidError
		reused   *KeyReusedError
		underway *UnderwayError
		declined *DeclinedError
	)
	if errors.As(err, &declined) || errors.As(err, &missing) || errors.As(err, &conflict) || errors.As(err, &invalid) ||
		errors.As(err, &reused) ||
		errors.As(err, &underway) {
		return err
	}
	if rejected := new(pgconn.PgError); errors.As(err, &rejected) {
		if told := valueFault(rejected); told != nil {
			return told
		}
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// valueFault returns what a rejection by Postgres means to the writer; nil: it is not about a value.
func valueFault(rejected *pgconn.PgError) error {
	switch {
	case rejected.Code == codeUnique:
		if told, ok := conflicts[rejected.ConstraintName]; ok {
			return &told
		}
		return &ConflictError{What: rejected.TableName, Problem: rejected.Detail}
	case strings.HasPrefix(rejected.Code, classIntegrity):
		if told, ok := constraintOf(rejected.ConstraintName); ok {
			return &told
		}
		return &InvalidError{Field: rejected.ColumnName, Problem: rejected.Message}
	case strings.HasPrefix(rejected.Code, classData):
		return &InvalidError{Field: rejected.ColumnName, Problem: rejected.Message}
	}
	return nil
}
