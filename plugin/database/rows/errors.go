package rows

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// NotFoundError reports a row that does not exist.
type NotFoundError struct {
	What string // the row in words: policy daily of tier gold
	Why  string // what else may be the cause; "": nothing
}

func (e *NotFoundError) Error() string {
	if e.Why != "" {
		return e.What + " does not exist: " + e.Why
	}
	return e.What + " does not exist"
}

// ConflictError reports a write that does not fit the current row. Nothing was written.
type ConflictError struct {
	What    string // the row in words
	Problem string // the conflict, and how to resolve it

	Revision int64 // of the current row; 0: there is no row, or the conflict does not concern its revision
}

func (e *ConflictError) Error() string { return e.What + ": " + e.Problem }

// InvalidError reports a value that a row may not have. Nothing was written.
type InvalidError struct {
	What    string // the row in words; empty: the only one of the call
	Field   string // its name in the row and in the plugin's config; empty: the row as a whole
	Problem string // which value would be valid
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

// invalid returns the faults of a row as InvalidErrors, joined.
func invalid(what string, faults []schema.Fault) error {
	var all []error
	for _, f := range faults {
		all = append(all, &InvalidError{what, f.Path, f.Message})
	}
	return errors.Join(all...)
}

// DeclinedError reports a write that its Accept has declined. Nothing was written.
type DeclinedError struct{ Err error }

func (e *DeclinedError) Error() string { return e.Err.Error() }

// Unwrap returns the error of Accept.
func (e *DeclinedError) Unwrap() error { return e.Err }

// UncertainError reports a write with an unknown outcome: the connection ended before the answer to its COMMIT. With
// the same Idempotency it can be sent again. Without one, read the current rows first.
type UncertainError struct{ Err error }

func (e *UncertainError) Error() string {
	return "the connection ended during the commit, so it is not known whether this was written: " + e.Err.Error()
}

// Unwrap returns how the connection ended.
func (e *UncertainError) Unwrap() error { return e.Err }

// uncertain wraps the error of a COMMIT in an UncertainError, unless Postgres has rejected the transaction.
func uncertain(err error) error {
	rejected, isRejected := errors.AsType[*pgconn.PgError](err)
	if isRejected && rejected.SeverityUnlocalized == "ERROR" || errors.Is(err, pgx.ErrTxCommitRollback) {
		return err
	}
	return &UncertainError{err}
}

// codeOf returns the SQLSTATE of an error of Postgres, or "" of another one.
func codeOf(err error) string {
	if rejected, ok := errors.AsType[*pgconn.PgError](err); ok {
		return rejected.Code
	}
	return ""
}

// IsReadOnly reports whether an error comes from a database that takes no writes: a standby, or one that is read-only.
func IsReadOnly(err error) bool { return codeOf(err) == codeReadOnly }

// IsLoginDenied reports whether an error comes from a database that denies the login: a wrong password, user or
// database.
func IsLoginDenied(err error) bool {
	return strings.HasPrefix(codeOf(err), classLogin) || codeOf(err) == codeNoDatabase
}

// IsRejected reports whether an error comes from a database that answered but cannot run a statement as it is: a table,
// a column or a privilege is missing.
func IsRejected(err error) bool { return strings.HasPrefix(codeOf(err), classSchema) }

// IsMissing reports whether an error is a NotFoundError.
func IsMissing(err error) bool { return is[*NotFoundError](err) }

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// The classes of SQLSTATE for invalid values (data exceptions and integrity constraints), for denied logins and for
// missing tables or privileges, and some codes.
const (
	classData      = "22"
	classIntegrity = "23"
	classLogin     = "28"
	classSchema    = "42"
	codeNoDatabase = "3D000"
	codeUnique     = "23505"
	codeReadOnly   = "25006"
)

// fail returns the error of an operation, or nil for nil. It keeps the errors of this package, turns rejections by
// Postgres into them, and wraps others with the operation. No text contains a password: pgx omits it.
func fail(doing string, err error) error {
	if err == nil {
		return nil
	}
	if is[*DeclinedError](err) || is[*NotFoundError](err) || is[*ConflictError](err) || is[*InvalidError](err) ||
		is[*KeyReusedError](err) || is[*UnderwayError](err) {
		return err
	}
	if rejected, ok := errors.AsType[*pgconn.PgError](err); ok {
		if fault := valueFault(rejected); fault != nil {
			return fault
		}
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// valueFault returns the error of this package for a rejected value, or nil if Postgres rejected something else.
func valueFault(rejected *pgconn.PgError) error {
	switch {
	case rejected.Code == codeUnique:
		if conflict, ok := conflicts[rejected.ConstraintName]; ok {
			return &conflict
		}
		return &ConflictError{What: rejected.TableName, Problem: rejected.Detail}
	case strings.HasPrefix(rejected.Code, classIntegrity):
		if invalid, ok := constraints[rejected.ConstraintName]; ok {
			return &invalid
		}
		return &InvalidError{Field: rejected.ColumnName, Problem: rejected.Message}
	case strings.HasPrefix(rejected.Code, classData):
		return &InvalidError{Field: rejected.ColumnName, Problem: rejected.Message}
	}
	return nil
}

// Words that several constraints share.
const (
	idProblem    = "must be at most 128 bytes: longer names are counted by their hash, so write that"
	actorProblem = "must be given, in at most 256 bytes"
	// callerProblem and unseenProblem concern the names of actors.
	callerProblem = "must not begin with token: or oidc: because only the process that serves the REST API writes for " +
		"its callers"
	unseenProblem = "must have no control or invisible characters, and no space at either end"
)

// expiryProblem is about an override that has ended by the clock of the database.
var expiryProblem = schema.FieldNamed[schema.Override]("expires_at").Must()

// constraints lists the CHECKs of package migrations, by name, whose faults only the database sees. What the checks of
// packages policy and schema report never reaches the others.
var constraints = map[string]InvalidError{
	"tiers_name":        {Field: "name", Problem: "must be 1 to 64 bytes"},
	"tiers_description": {Field: "description", Problem: "must be at most 1024 bytes"},
	"tokens_name": {
		Field: "name", Problem: "must be 1 to 64 letters, digits, dots, dashes, underscores or @",
	},
	"tokens_name_org":           {Field: "name", Problem: "must have no slash, or begin with the org of the token, percent-encoded"},
	"tokens_lifetime":           {Field: "expires_in", Problem: "must be from 1s to 365d"},
	"tokens_overlap":            {Field: "overlap", Problem: "must be from 0s to 7d"},
	"tokens_role":               {Field: "role", Problem: roleProblem},
	"tokens_org":                {Field: "org", Problem: idProblem},
	"tokens_org_missing":        {Field: "org", Problem: "must be given for a tenant's token: its role is tenant:{org}"},
	"tokens_org_unused":         {Field: "org", Problem: "belongs to a tenant's token alone: leave it out"},
	"tokens_created_by":         {Field: "actor", Problem: actorProblem},
	"tokens_expires_at":         {Field: "expires_at", Problem: "must be in the future"},
	"tokens_revoked_by":         {Field: "actor", Problem: actorProblem},
	"answers_key":               {Field: "idempotency_key", Problem: "must be 1 to 128 printable characters of ASCII"},
	"webhooks_org":              {Field: "org", Problem: idProblem},
	"webhooks_created_by":       {Field: "actor", Problem: actorProblem},
	"candidates_name":           {Field: "name", Problem: candidateNameProblem},
	"audit_actor_token":         {Field: "actor", Problem: callerProblem},
	"overrides_expires_at":      {Field: "expires_at", Problem: expiryProblem},
	"overrides_author_token":    {Field: "author", Problem: callerProblem},
	"audit_actor_seen":          {Field: "actor", Problem: unseenProblem},
	"webhooks_created_by_token": {Field: "actor", Problem: callerProblem},
	"overrides_author_seen":     {Field: "author", Problem: unseenProblem},
	"webhooks_created_by_seen":  {Field: "actor", Problem: unseenProblem},
}

// conflicts lists the unique indexes of package migrations, by name, that a write can break: the others are read first.
var conflicts = map[string]ConflictError{
	"tokens_one_per_name": {
		What:    "token",
		Problem: "there is one of this name: revoke it first, or take another name",
	},
	"tokens_one_role_per_name": {
		What: "token",
		Problem: "one of this name, or of another spelling of it, has or had another role, " +
			"and the audit distinguishes tokens by their names: take another",
	},
	"overrides_one_per_subject": {
		What:    "override",
		Problem: "there is one of this kind for the same subject and policy: update it or end it first",
	},
}
