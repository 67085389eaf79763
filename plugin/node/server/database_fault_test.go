package server

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/engine"
)

func TestANodeLogsAFailedConnectionInOneLineThatNamesWhereToCorrectIt(t *testing.T) {
	s, err := parseSettings([]string{
		"-database", pgtest.Denied(t), "-snapshot-dir", "off", "-log-file", filepath.Join(t.TempDir(), "log"),
	}, func(string) string { return "" }, io.Discard)
	require.NoError(t, err)
	log := newLogging(&s, io.Discard)
	e := engine.New(t.Context(), engine.Options{Log: log.Logger})
	require.NoError(t, e.FollowRows(s.rows("node", new(guard))))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Rows.Run(ctx) }()
	await.That(t, "a warning is logged", func() bool { return log.counted()["warn"] > 0 })
	cancel()
	<-ended
	log.close()
	text, err := os.ReadFile(s.LogFile)
	require.NoError(t, err)
	pgtest.WantPlain(t, string(text), `denied the password of user \"ann\"`, "-database", "Postgres denies the login")
}
