package rows

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestARejectedCommitIsNotUncertainInAnyLanguage(t *testing.T) {
	for severity, want := range map[string]bool{"ERROR": false, "FATAL": true} {
		err := uncertain(&pgconn.PgError{Severity: "FEHLER", SeverityUnlocalized: severity, Code: "40001"})
		if got := errors.As(err, new(*UncertainError)); got != want {
			t.Errorf("%s: uncertain is %t, want %t", severity, got, want)
		}
	}
}
