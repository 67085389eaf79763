package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
)

// full is a writer like /dev/full.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestATokenWhoseSecretCouldNotBeShownIsToBeRevoked(t *testing.T) {
	dsn := pgtest.Shared(t).Database(t)
	for name, format := range map[string]string{"x1": "table", "x2": "json"} {
		file := filepath.Join(t.TempDir(), "dsn")
		require.NoError(t, os.WriteFile(file, []byte(dsn), 0o600))
		var stderr strings.Builder
		o := &operator{
			getenv: func(string) string { return "" }, login: func() string { return "ann@laptop" },
			stdout: screen{to: full{}}, stderr: screen{to: &stderr},
		}
		code := o.run(t.Context(), []string{
			"token", "create", name, "--role", "admin", "--reason", "x", "-o", format, "--database-file", file,
		})
		if want := "ratelimit token revoke " + name; code != exitFailed || !strings.Contains(stderr.String(), want) {
			t.Errorf("-o %s: exit code %d, want %q in\n%s", format, code, want, stderr.String())
		}
	}
}
