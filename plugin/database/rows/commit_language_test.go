package rows

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
)

func TestARejectedCommitIsNotUncertainInAnyLanguage(t *testing.T) {
	for severity, want := range map[string]bool{"ERROR": false, "FATAL": true} {
		err := uncertain(&pgconn.PgError{Severity: "FEHLER", SeverityUnlocalized: severity, Code: "40001"})
		assert.Equal(t, want, errors.As(err, new(*UncertainError)), "%s: uncertain", severity)
	}
}
