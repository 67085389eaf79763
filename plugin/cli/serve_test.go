package cli

import (
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/server"
)

// parseServe returns the settings of a call of serve, or its error.
func parseServe(t *testing.T, env map[string]string, line string) (*server.Settings, *call, error) {
	t.Helper()
	o := &operator{
		getenv: func(name string) string { return env[name] },
		stdout: screen{to: io.Discard}, stderr: screen{to: io.Discard},
	}
	c := &command{words: "serve", brief: "serve"}
	var s *server.Settings
	c.define = func(c *call) action { s, _ = c.serveFlags(); return nil }
	call := newCall(o, c)
	if err := call.flags.Parse(words(t, line)); err != nil {
		return nil, nil, flagFault(call.cobra, err)
	}
	for _, check := range call.checks {
		if err := check(); err != nil {
			return nil, nil, err
		}
	}
	return s, call, nil
}

func TestServeReportsASettingThatIsInvalidOrUnsafe(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"--listen 8090", "--listen: \"8090\": must be host:port"},
		{"--listen 127.0.0.1:http", "must be host:port"},
		{"--listen 0.0.0.0:8090", "other machines reach 0.0.0.0:8090"},
		{"--listen :8090", "other machines reach :8090"},
		{"--listen [::]:8090", "--insecure-http"},
		{"--listen api.internal:8090", "other machines reach api.internal:8090"},
		{"--tls-cert c.pem", "--tls-cert and --tls-key together"},
		{"--tls-key k.pem", "--tls-cert and --tls-key together"},
		{"--client-ca ca.pem", "--client-ca"},
		{"--tls-cert c.pem --tls-key k.pem --insecure-http", "either"},
		{"--lease-share 6", "a whole number from 0 to 5"},
		{"--max-addresses -1", "must be a whole number"},
		{"--new-addresses many", "must be a whole number"},
		{"--trusted-proxies 10.0.0.0/8,lb", `--trusted-proxies: "10.0.0.0/8,lb": "lb" must be a network`},
		{"--trusted-proxies ::/0", `"::/0" has all addresses`},
		{"--log-level loud", `--log-level: "loud": must be debug, info, warn or error`},
		{"--metrics-listen 127.0.0.1", `--metrics-listen: "127.0.0.1": must be host:port`},
		{"--metrics-listen 0.0.0.0:9543", "or set --metrics-allow-remote"},
		{"--shutdown-time soon", "must be a duration above 0"},
		{"--drain-time -1s", "must be a duration above 0"},
		{"--forward-auth testdata/none.yml --forward-auth-proxies 10.0.0.1", "--forward-auth: "},
		{
			"--forward-auth testdata/forward-auth.yml --trusted-proxies 10.0.0.1",
			"--forward-auth: only proxies may ask: name their addresses by --forward-auth-proxies",
		},
		{"--forward-auth-proxies 10.0.0.1", "--forward-auth: only proxies may ask"},
		{"--forward-auth-proxies 0.0.0.0/0", `--forward-auth-proxies: "0.0.0.0/0": "0.0.0.0/0" has all addresses`},
		{"--forward-auth testdata/forward-auth.yml --forward-auth-proxies 10.0.0.1", "--config: is required with"},
		{"--envoy-config testdata/envoy.yml --envoy-listen 127.0.0.1:8081", "--config: is required with --envoy-listen"},
		{"--envoy-insecure", "--envoy-listen: is required"},
		{"--envoy-client-ca ca.pem", "--envoy-listen: is required"},
		{"--envoy-tls-key k.pem", "--envoy-listen: is required"},
		{"--config k.yml --envoy-listen 127.0.0.1:8081", "give --envoy-config"},
		{"--envoy-config testdata/none.yml", "--envoy-config: "},
		{"--envoy-config serve_test.go", "--envoy-config: \"serve_test.go\": must be YAML of the form"},
		{"--config k.yml --envoy-config testdata/envoy.yml --envoy-listen 8081", `--envoy-listen: "8081": must be host:port`},
		{"--config k.yml --envoy-config testdata/envoy.yml --envoy-listen :8081", "other machines reach :8081"},
		{
			"--config k.yml --envoy-config testdata/envoy.yml --envoy-listen 127.0.0.1:8081 --envoy-client-ca ca.pem",
			"--envoy-client-ca: client certificates require TLS: give --envoy-tls-cert",
		},
	} {
		if _, _, err := parseServe(t, nil, c.line); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.line, err, c.want)
		}
	}
}

func TestServeNeedsTLSOrAFlagForAddressesThatOtherMachinesReach(t *testing.T) {
	for _, line := range []string{
		"", "--listen 127.0.0.1:0", "--listen localhost:8090", "--listen [::1]:8090", "--listen [::ffff:127.0.0.1]:8090",
		"--listen 0.0.0.0:8090 --insecure-http", "--listen :8443 --tls-cert c.pem --tls-key k.pem --client-ca ca.pem",
		"--config kong.yml --envoy-config testdata/envoy.yml --envoy-listen :8081 --envoy-insecure",
		"--config kong.yml --forward-auth testdata/forward-auth.yml --forward-auth-proxies 10.0.0.1",
	} {
		if _, _, err := parseServe(t, nil, line); err != nil {
			t.Errorf("%q: %v", line, err)
		}
	}
}

func TestSettingsOfServeAreFlagsElseVariables(t *testing.T) {
	env := map[string]string{
		"RATELIMIT_LISTEN": "127.0.0.1:1", "RATELIMIT_LOG_LEVEL": "warn", "RATELIMIT_SHUTDOWN_TIME": "3s",
		"RATELIMIT_LEASE_SHARE": "0", "RATELIMIT_METRICS_LISTEN": "off",
		"RATELIMIT_DATABASE": "host=from-variable", "RATELIMIT_DATABASE_FILE": "/from/variable",
	}
	s, c, err := parseServe(t, env, "--listen 127.0.0.1:2")
	require.NoError(t, err)
	if s.Listen != "127.0.0.1:2" || s.LogLevel != slog.LevelWarn || s.ShutdownTime != 3*time.Second ||
		s.LeaseShare != 0 || s.MetricsListen != "" {
		t.Errorf("%+v", s)
	}
	if c.database.file != "/from/variable" || c.database.dsn != "" {
		t.Errorf("the database is %+v, want the file of the variable", c.database)
	}
	if _, c, err = parseServe(t, env, "--database host=from-flag"); err != nil || c.database.file != "" ||
		c.database.dsn != "host=from-flag" {
		t.Errorf("the database is %+v (%v), want the flag's alone", c.database, err)
	}
	env = map[string]string{"RATELIMIT_DRAIN_TIME": "x", "RATELIMIT_INSECURE_HTTP": "perhaps"}
	if _, _, err = parseServe(t, env, ""); err == nil || !strings.Contains(err.Error(), "RATELIMIT_DRAIN_TIME") ||
		!strings.Contains(err.Error(), `RATELIMIT_INSECURE_HTTP: "perhaps": must be true or false`) {
		t.Errorf("%v, want both variables named", err)
	}
}

func TestWithoutADatabaseServeNamesEveryFlagThatNeedsOne(t *testing.T) {
	const off = "--database off --config kong.yml "
	const door = off + "--envoy-listen 127.0.0.1:8081 --envoy-config testdata/envoy.yml "
	for _, line := range []string{
		door, door + "--lease-share 0 --max-addresses 5 --drain-time 3s --log-level warn --metrics-listen off",
		off + "--forward-auth testdata/forward-auth.yml --forward-auth-proxies 10.0.0.1 --listen :8090 --insecure-http",
		door + "--portal off --keeper-database off --abuse off --usage off --denial-recent off --snapshot-dir off",
	} {
		s, _, err := parseServe(t, nil, line)
		require.NoError(t, err, line)
		if !s.NoDatabase || s.Portal.On || s.Usage || s.DenialRecent || s.Keeper != nil {
			t.Errorf("%s: %+v", line, s)
		}
	}
	for line, want := range map[string]string{
		off: "--database: off leaves only the doors for other proxies: give --envoy-listen or --forward-auth",
		door + "--portal on --kafka-brokers k:9092 --lease-share 1": "--portal, --kafka-brokers: only with a database",
		door + "--keeper-database host=h":                           "--keeper-database: only with a database",
		door + "--keeper-database-file f":                           "--keeper-database-file: ",
		door + "--kafka-updates-topic t":                            "--kafka-updates-topic: ",
		door + "--portal-oidc-issuer https://id.example.com":        "--portal-oidc-issuer: ",
		door + "--webhook-allow-http":                               "--webhook-allow-http: ",
		door + "--abuse shadow":                                     "--abuse: ",
		door + "--abuse-denied-share 90":                            "--abuse-denied-share: ",
		door + "--snapshot-dir /tmp":                                "--snapshot-dir: ",
		door + "--usage on":                                         "--usage: ",
		door + "--denial-recent on":                                 "--denial-recent: ",
		door + "--denial-salt-file f":                               "--denial-salt-file: ",
		door + "--new-subjects 5":                                   "--new-subjects: ",
	} {
		if _, _, err := parseServe(t, nil, line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
	env := map[string]string{"RATELIMIT_DATABASE": "off", "RATELIMIT_PORTAL_IDLE": "1h"}
	if _, _, err := parseServe(t, env, ""); err == nil || !strings.Contains(err.Error(), "--portal-idle: only with") {
		t.Errorf("%v, want the flag of the variable", err)
	}
}

func TestATakenPortIsTheOnlyErrorOfAServerThatNeverStarted(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer other.Close()
	x := &terminal{t: t, env: map[string]string{databaseVariable: nowhere}}
	code := x.call("serve", "--listen", other.Addr().String(), "--metrics-listen", "off", "--log-level", "info")
	text := strings.TrimSpace(x.output.String())
	last := text[strings.LastIndex(text, "\n")+1:]
	if code != exitFailed || !strings.HasPrefix(last, "ratelimit serve: --listen: ") ||
		!strings.Contains(last, other.Addr().String()) {
		t.Errorf("exit code %d, the last line is %s; want the address that is taken", code, last)
	}
}

func TestTheLeaderOfServeHasALoginOfItsOwnOrThatOfTheAPI(t *testing.T) {
	file := filepath.Join(t.TempDir(), "dsn")
	require.NoError(t, os.WriteFile(file, []byte("host=from-file\n"), 0o600))
	otherwise := &server.Database{Name: "--database"}
	for line, want := range map[string]string{
		"": "--database", "--keeper-database off": "", "--keeper-database-file off": "",
		"--keeper-database host=h":                          "--keeper-database h",
		"--keeper-database-file " + file:                    "--keeper-database-file " + file + " from-file",
		"--keeper-database host=h --keeper-database-file f": "not both",
		"--keeper-database host":                            "--keeper-database: must be a connection string",
		"--keeper-database-file /does/not/exist":            "--keeper-database-file: open /does/not/exist",
	} {
		_, c, err := parseServe(t, nil, line)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		got := ""
		switch database, err := c.keeperDatabase(otherwise); {
		case err != nil:
			got = err.Error()
		case database == otherwise:
			got = database.Name
		case database != nil:
			config, err := database.Connect()
			require.NoError(t, err)
			got = database.Name + " " + config.ConnConfig.Host
		}
		if !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%q: %s, want %s", line, got, want)
		}
	}
}
