package spec

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// The spec runs the commands, flags and configurations of docker-compose.yml with the addresses of this machine.
func TestTheServicesOfComposeWorkTogether(t *testing.T) {
	t.Parallel()
	project := composed(t)
	counters := redistest.Single(t, project.Services["redis"].Command[1:]...)
	dsn := postgresFor(t, project)
	try := func(args ...string) (string, error) {
		command := exec.Command(filepath.Join(binaries, "ratelimit"), args...)
		command.Env = append(os.Environ(), "RATELIMIT_DATABASE="+dsn)
		out, err := command.CombinedOutput()
		return string(out), err
	}
	operate := func(args ...string) string {
		t.Helper()
		out, err := try(args...)
		if err != nil {
			t.Fatalf("ratelimit %q: %v\n%s", args, err, out)
		}
		return out
	}
	if out := operate(project.Services["migrations"].Command...); strings.Contains(out, "superuser") {
		t.Errorf("a superuser owns the tables: %s", out)
	}

	flags := startFlags(t, project)
	delete(flags, "-kong-prefix") // the gateway gives its own
	flags["-database-file"], flags["-snapshot-dir"] = filepath.Join(t.TempDir(), "database"), t.TempDir()
	flags[patient[0]] = patient[1]
	require.NoError(t, os.WriteFile(flags["-database-file"], []byte(dsn), 0o600))
	metrics := freeport.Address(t)
	_, port, _ := strings.Cut(metrics, ":")
	flags["-metrics-listen"] = strings.Replace(flags["-metrics-listen"], "9542", port, 1)
	var args []string
	for name, value := range flags {
		args = append(args, name, value)
	}
	config := strings.NewReplacer("host: redis", fmt.Sprintf("host: 127.0.0.1, port: %d, %s", counters.Port, patience),
		"{vault://env/redis-password}", "of-redis").Replace(demoConfig(t))
	n := start(t, config, func(o *gateway.Options) { o.Servers = []gateway.PluginServer{{Binary: plugin(), Args: args}} })

	n.want([]int{200}, "/records", "apikey", "beta-key")
	checkRedis(t, project.Services["redis"], counters)
	await.That(t, "the plugin reports to Postgres", func() bool {
		out, err := try(project.Services["operator"].Command...)         // it fails without a live node
		return err == nil && strings.Contains(out, "1 of 1 live node\n") // it joined after the change, so no time is shown
	})
	operate("override", "add", "--tenant", "beta", "--kind", "ban", "--expires-in", "1m", "--reason", "a look around",
		"--wait=30s")
	n.want([]int{429}, "/records", "apikey", "beta-key")
	if _, text := read(metrics, "/metrics"); !strings.Contains(text, "rate_limiter_requests_total{") {
		t.Errorf("no metrics at %s: %s", metrics, text)
	}
}

// postgresFor starts a Postgres, prepares it as the image of the service does, and returns the connection string.
func postgresFor(t *testing.T, project *types.Project) string {
	t.Helper()
	server, config := pgtest.Start(t), database(t, project)
	server.Psql(t, server.DSN("postgres"), project.Configs["owner"].Content)
	return strings.Replace(project.Configs["database"].Content, "host="+config.Host,
		"host="+server.Host+" port="+strconv.Itoa(server.Port), 1)
}

// checkRedis checks that the counters are in the Redis of docker-compose.yml, which requires a password and never
// evicts.
func checkRedis(t *testing.T, service types.ServiceConfig, server *redistest.Server) {
	t.Helper()
	healthy := func(password string) bool {
		check := exec.Command(service.HealthCheck.Test[1],
			append([]string{"-p", strconv.Itoa(server.Port)}, service.HealthCheck.Test[2:]...)...)
		check.Env = append(os.Environ(), "REDISCLI_AUTH="+password)
		return check.Run() == nil
	}
	password := variables(service)["REDISCLI_AUTH"]
	if !healthy(password) || healthy("wrong") {
		t.Errorf("the health check is %v with the password and %v with a wrong one", healthy(password), healthy("wrong"))
	}
	if err := server.Client(t).Ping(context.Background()).Err(); err == nil || !strings.Contains(err.Error(), "NOAUTH") {
		t.Errorf("without a password: %v", err)
	}
	options := *server.Client(t).Options()
	options.Password = password
	client := redis.NewClient(&options)
	defer client.Close()
	policy, err := client.ConfigGet(context.Background(), "maxmemory-policy").Result()
	if err != nil || policy["maxmemory-policy"] != "noeviction" {
		t.Errorf("maxmemory-policy is %v (%v), want noeviction", policy, err)
	}
	if size, err := client.DBSize(context.Background()).Result(); err != nil || size == 0 {
		t.Errorf("%d keys in Redis (%v)", size, err)
	}
}
