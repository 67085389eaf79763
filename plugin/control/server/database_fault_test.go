package server

import (
	"bytes"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
)

func TestAFailedConnectionIsLoggedInOneLineWithTheSetting(t *testing.T) {
	dsn := pgtest.Denied(t)
	s := &Settings{Listen: "127.0.0.1:0", Database: Database{
		Name: "RATELIMIT_DATABASE", Connect: func() (*pgxpool.Config, error) { return pgxpool.ParseConfig(dsn) },
	}}
	var log bytes.Buffer
	pool, err := s.Database.open(t.Context())
	require.NoError(t, err)
	defer pool.Close()
	require.NoError(t, s.checkTokens(t.Context(), pool, s.newLog(&log)))
	if strings.Count(log.String(), "\n") != 1 {
		t.Errorf("logged\n%s\nwant one line", log.String())
	}
	pgtest.WantPlain(t, log.String(), `denied the password of user \"ann\"`, "RATELIMIT_DATABASE")
}
