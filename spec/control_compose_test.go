package spec

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

// The spec runs the command, variables and health check of the service control with the addresses of this machine.
func TestTheRESTAPIOfComposeNeedsATokenAndReadsTheBucketsOfKong(t *testing.T) {
	t.Parallel()
	project := composed(t)
	service := project.Services["control"]
	counters := redistest.Single(t, project.Services["redis"].Command[1:]...)
	p := &plane{t: t, dsn: postgresFor(t, project)}
	p.operate(project.Services["migrations"].Command...)

	config := filepath.Join(t.TempDir(), "kong.yml")
	text := strings.Replace(demoConfig(t), "host: redis",
		fmt.Sprintf("host: 127.0.0.1, port: %d, %s", counters.Port, patience), 1)
	require.NoError(t, os.WriteFile(config, []byte(text), 0o600))
	image := imageEnvironment(t)["KONG_DECLARATIVE_CONFIG"]
	_, port, err := net.SplitHostPort(freeport.Address(t))
	require.NoError(t, err)
	_, metrics, err := net.SplitHostPort(freeport.Address(t))
	require.NoError(t, err)
	published := strconv.Itoa(int(service.Ports[0].Target))
	args := strings.Fields(strings.NewReplacer("0.0.0.0:"+published, "0.0.0.0:"+port, "="+image, "="+config, ":9543",
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
	if !strings.Contains(body, `"used":1,`) {
		t.Errorf("the usage lacks the spent token: %s", body)
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

func TestPrometheusScrapesTheRESTAPIOfCompose(t *testing.T) {
	t.Parallel()
	command := strings.Join(composed(t).Services["control"].Command, " ")
	flag := regexp.MustCompile(`--metrics-listen=\S+:(\d+)`).FindStringSubmatch(command)
	if flag == nil || !strings.Contains(file(t, "kong/prometheus.yml"), fmt.Sprintf("targets: [control:%s]", flag[1])) {
		t.Errorf("Prometheus does not scrape the service control at %v", flag)
	}
}
