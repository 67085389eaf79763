package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
)

const soldDeck = `_format_version: "3.0"
plugins:
- name: tenant-rate-limiting
  config:
    tiers:
    - name: gold
      limits:
      - {name: monthly, scope: tenant, limit: 10000, algorithm: fixed_window, period: month, time_zone: Europe/Berlin}
`

func TestATopUpIsTriedThenMadeThenExplained(t *testing.T) {
	t.Parallel()
	deck := filepath.Join(t.TempDir(), "kong.yml")
	require.NoError(t, os.WriteFile(deck, []byte(soldDeck), 0o600))
	env := map[string]string{databaseVariable: pgtest.Shared(t).Database(t)}
	call := func(code int, line string, more ...string) string {
		t.Helper()
		var output bytes.Buffer
		o := operator{
			getenv: func(name string) string { return env[name] }, login: func() string { return "ann@laptop" },
			now: time.Now, stdin: strings.NewReader(""), stdout: screen{to: &output}, stderr: screen{to: &output},
		}
		require.Equal(t, code, o.run(t.Context(), append(strings.Fields(line), more...)), output.String())
		return output.String()
	}
	call(0, "tenant set acme --tier gold --time-zone Asia/Tokyo --reason sold")
	tokyo, err := time.LoadLocation("Asia/Tokyo")
	require.NoError(t, err)
	year, month, _ := time.Now().In(tokyo).Date()
	end := time.Date(year, month+1, 1, 0, 0, 0, 0, tokyo).UTC().Format(time.RFC3339)

	line := "topup --tenant acme --policy monthly --amount 500 --reason ticket --config " + deck
	for range 2 { // the first changes nothing
		assert.Equal(t, "monthly: 10000 becomes 10500 until "+end+"\n", call(0, line+" --dry-run"))
	}
	made := call(0, line)
	assert.Contains(t, made, "added override 1: topup of 500, tenant acme, policy monthly, until "+end)
	call(0, line)
	assert.Contains(t, call(0, line+" --dry-run"), "monthly: 11000 becomes 11500")
	explained := call(0, "explain --tenant acme --config "+deck)
	for _, text := range []string{
		"11000 per month (Asia/Tokyo)", "TOP UP", "1000", "TIME ZONE SOURCE", "it changes monthly",
	} {
		assert.Contains(t, explained, text)
	}
	assert.Contains(t, call(0, "override list"), "AMOUNT")
	call(0, "override end 1 --reason over")

	for line, want := range map[string]string{
		"topup --tenant acme --policy monthly --amount 500 --reason r": "give the config, or expires_at",
		"override extend 2 --by 1d --reason r":                         "is topup, which does not change",
	} {
		assert.Contains(t, call(1, line), want, line)
	}
	for line, want := range map[string]string{
		"topup --tenant acme --policy monthly --amount -5 --reason r":                        "must be > 0, got -5",
		"topup --policy monthly --amount 5 --reason r":                                       "--tenant is required",
		"topup --tenant acme --policy monthly --amount 5 --reason r --dry-run":               "needs --config or --server",
		"override add --kind topup --tenant acme --policy monthly --permanent --reason more": "use ratelimit topup",
	} {
		assert.Contains(t, call(2, line), want, line)
	}
}
