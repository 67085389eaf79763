package spec

import (
	"context"
	"fmt"
	"net"
	"net/http"
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
	p := &plane{t: t, dsn: postgresFor(t, project)}
	out, err := p.command(project.Services["migrations"].Command...).CombinedOutput()
	if err != nil || strings.Contains(string(out), "superuser") {
		t.Fatalf("migrations: %v, or a superuser owns the tables: %s", err, out)
	}

	flags := startFlags(t, project)
	delete(flags, "-kong-prefix") // the gateway gives its own
	flags["-database-file"], flags["-snapshot-dir"] = filepath.Join(t.TempDir(), "database"), t.TempDir()
	flags[patient[0]] = patient[1]
	require.NoError(t, os.WriteFile(flags["-database-file"], []byte(p.dsn), 0o600))
	metrics := freeport.Address(t)
	_, port, _ := strings.Cut(metrics, ":")
	flags["-metrics-listen"] = strings.Replace(flags["-metrics-listen"], "9542", port, 1)
	var args []string
	for name, value := range flags {
		args = append(args, name, value)
	}
	config := strings.Replace(demoConfig(t), "host: redis",
		fmt.Sprintf("host: 127.0.0.1, port: %d, %s", counters.Port, patience), 1)
	n := start(t, strings.Replace(config, "{vault://env/redis-password}", "of-redis", 1), func(o *gateway.Options) {
		o.Servers = []gateway.PluginServer{{Binary: plugin(), Args: args}}
	})

	n.want([]int{200}, "/records", "apikey", "beta-key")
	checkRedis(t, project.Services["redis"], counters)
	await.That(t, "the plugin reports to Postgres", func() bool {
		out, err := p.command(project.Services["operator"].Command...).CombinedOutput() // it fails without a live node
		return err == nil && strings.Contains(string(out), "1 of 1 live node\n")        // it joined after the change
	})
	checkAPI(t, p, project, config)
	p.operate("override", "add", "--tenant", "beta", "--kind", "ban", "--expires-in", "1m", "--reason", "a look around",
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

// checkAPI checks the service control: it needs a token, and reads the buckets of Kong, in which one request was
// counted. config is its decK file.
func checkAPI(t *testing.T, p *plane, project *types.Project, config string) {
	t.Helper()
	service, deck := project.Services["control"], filepath.Join(t.TempDir(), "kong.yml")
	require.NoError(t, os.WriteFile(deck, []byte(config), 0o600))
	image := imageEnvironment(t)["KONG_DECLARATIVE_CONFIG"]
	_, port, err := net.SplitHostPort(freeport.Address(t))
	require.NoError(t, err)
	_, metrics, err := net.SplitHostPort(freeport.Address(t))
	require.NoError(t, err)
	published := strconv.Itoa(int(service.Ports[0].Target))
	args := strings.Fields(strings.NewReplacer("0.0.0.0:"+published, "0.0.0.0:"+port, "="+image, "="+deck, ":9543",
		":"+metrics).Replace(strings.Join(service.Command, " ")))
	command := func() *exec.Cmd {
		cmd := p.command(args...)
		for name, value := range variables(service) {
			if name != "RATELIMIT_DATABASE" {
				cmd.Env = append(cmd.Env, name+"="+value)
			}
		}
		return cmd
	}
	if out, err := command().CombinedOutput(); err == nil || !strings.Contains(string(out), "ratelimit token create") {
		t.Errorf("without a token: %v\n%s", err, out)
	}
	secret := p.token("ann", "admin")
	a := p.run(command(), &api{url: "http://127.0.0.1:" + port, metrics: "127.0.0.1:" + metrics, secret: secret})
	healthy := healthCheck(t, service, published, port)
	await.That(t, "the health check passes", healthy)
	a.want(http.StatusOK, nil, http.MethodPost, check, `{"org_id":"beta","endpoint":"GET /records"}`)
	body := a.want(http.StatusOK, nil, http.MethodGet, "/v1/orgs/beta/ratelimit/usage", "").Body
	if !strings.Contains(body, `"used":2,`) {
		t.Errorf("the usage lacks a spent token: %s", body)
	}
	if status, _ := read(a.metrics, "/metrics"); status != http.StatusOK {
		t.Errorf("/metrics answers %d", status)
	}
	if err := a.terminate(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	if healthy() {
		t.Error("the health check passes without a server")
	}
}

// healthCheck returns a service's health check on another port.
func healthCheck(t *testing.T, service types.ServiceConfig, from, to string) func() bool {
	t.Helper()
	test := service.HealthCheck.Test
	script := strings.Replace(test[len(test)-1], "/127.0.0.1/"+from, "/127.0.0.1/"+to, 1)
	if test[0] != "CMD" || script == test[len(test)-1] {
		t.Fatalf("the health check is %q", test)
	}
	// The library has replaced two dollars by one, as docker compose does.
	return func() bool { return exec.Command(test[1], test[2], script).Run() == nil }
}
