package server

import (
	"bytes"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
)

func TestAPortThatIsInUseIsTheOnlyFault(t *testing.T) {
	for what, dsn := range map[string]string{
		"a database": pgtest.Shared(t).Database(t), "no database": pgtest.Denied(t),
	} {
		used, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer used.Close()
		s := &Settings{Listen: used.Addr().String(), Database: Database{
			Name: "RATELIMIT_DATABASE", DSN: dsn,
			Connect: func() (*pgxpool.Config, error) { return pgxpool.ParseConfig(dsn) },
		}}
		var log bytes.Buffer
		if err := Run(t.Context(), s, &log); err == nil || !strings.HasPrefix(err.Error(), "--listen: ") {
			t.Errorf("beside %s it ends with %v, want the fault of --listen", what, err)
		}
		if log.Len() > 0 {
			t.Errorf("beside %s it logs\n%s\nwant only the fault of the address", what, log.String())
		}
	}
}
