package migrations_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/migrations"
)

func TestAdviceIsForErrorsThatOnlyAnOperatorCanResolve(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]string{
		"42703": "migrate up", "42P01": "migrate up", "42883": "migrate up",
		"42501": "migrations/README.md", "25006": "read-only",
		"28P01": "connection string", "28000": "connection string", "3D000": "connection string", "40001": "", "57P01": "",
	} {
		got := migrations.Advice(fmt.Errorf("load: %w", &pgconn.PgError{Code: code}))
		if !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("the advice about %s is %q, want %q in it", code, got, want)
		}
	}
	if got := migrations.Advice(errors.New("42703")); got != "" {
		t.Errorf("the advice about another error is %q", got)
	}
}
