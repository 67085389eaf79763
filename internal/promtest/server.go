// Package promtest starts a real Prometheus for a test, and ends it with the test. The server scrapes targets,
// evaluates rules and answers queries. It has a temporary folder and a free port of the loopback. Without a server,
// [Promtool] checks rules, and [Published] finds unpublished metrics and labels in an expression.
//
// A test without Prometheus fails and is never skipped. If prometheus or promtool is missing, this package installs it
// with apt-get, once and if the environment asks for it (package debian).
//
// The rules are in kong/prometheus, the dashboards in kong/grafana.
package promtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/daemon"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/debian"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
)

// serverTimeout bounds the wait for an answer. It is long because tests share a busy machine.
const serverTimeout = 2 * time.Minute

// Config configures the targets and rules of a Prometheus.
type Config struct {
	Job      string        // the value of the label job
	Targets  []string      // host:port, each with metrics at /metrics; the values of the label instance
	Rules    []string      // absolute paths of rule files; none: no rules
	Interval time.Duration // between two scrapes, and two evaluations of the rules; at least a millisecond
}

// Server is one running Prometheus.
type Server struct {
	Address string // host:port, on the loopback

	client *http.Client
}

// Start starts a Prometheus and waits until it answers. It runs until the end of the test.
func Start(t testing.TB, c Config) *Server {
	t.Helper()
	path, err := debian.Program(pkg, "prometheus")
	require.NoError(t, err)
	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, c.write(file))
	s := &Server{Address: freeport.Address(t), client: &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true}, // an idle connection would be a leak
		Timeout:   serverTimeout,
	}}
	cmd := exec.Command(path, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+s.Address, "--log.level=warn")
	process, err := daemon.Start(cmd, s.checkReady)
	require.NoError(t, err, "start prometheus")
	t.Cleanup(func() { require.NoError(t, process.End(syscall.SIGKILL)) })
	return s
}

// write writes the configuration file of Prometheus.
func (c Config) write(file string) error {
	text := fmt.Sprintf(`global: {scrape_interval: %[1]dms, scrape_timeout: %[1]dms, evaluation_interval: %[1]dms}
rule_files: [%[2]s]
scrape_configs: [{job_name: %[3]s, static_configs: [{targets: [%[4]s]}]}]
`, c.Interval.Milliseconds(), strings.Join(c.Rules, ", "), c.Job, strings.Join(c.Targets, ", "))
	return os.WriteFile(file, []byte(text), 0o600)
}

// checkReady returns an error unless the server is ready for queries.
func (s *Server) checkReady() error {
	response, err := s.client.Get("http://" + s.Address + "/-/ready")
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return errors.Join(err, response.Body.Close())
}

// pkg is the Debian package with both programs.
const pkg = "prometheus"

// Promtool runs promtool in a folder and returns its output. It returns an error if promtool finds a fault. Without
// promtool the test fails.
func Promtool(t testing.TB, dir string, args ...string) (output string, err error) {
	t.Helper()
	path, err := debian.Program(pkg, "promtool")
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Dir = dir
	text, err := cmd.CombinedOutput()
	return string(text), err
}

// Query evaluates an expression now. A scalar is one sample without labels. A faulty expression returns the error of
// Prometheus.
func (s *Server) Query(expression string) (model.Vector, error) {
	var answer struct {
		Type   model.ValueType `json:"resultType"`
		Result json.RawMessage `json:"result"`
	}
	if err := s.get("query?query="+url.QueryEscape(expression), &answer); err != nil {
		return nil, fmt.Errorf("query %s: %w", expression, err)
	}
	if answer.Type == model.ValScalar {
		var value model.Scalar
		err := json.Unmarshal(answer.Result, &value)
		return model.Vector{{Value: value.Value}}, err
	}
	var samples model.Vector
	return samples, json.Unmarshal(answer.Result, &samples)
}

// Rule holds one rule that a server evaluates.
type Rule struct {
	Name   string `json:"name"`
	Query  string `json:"query"`
	State  string `json:"state"`     // inactive, pending or firing; "" of a recording rule
	Health string `json:"health"`    // unknown before the first evaluation, ok or err
	Error  string `json:"lastError"` // of the last evaluation
}

// Rules returns the rules of all files, in their order there, with the results of the last evaluation.
func (s *Server) Rules() ([]Rule, error) {
	var answer struct {
		Groups []struct {
			Rules []Rule `json:"rules"`
		} `json:"groups"`
	}
	if err := s.get("rules", &answer); err != nil {
		return nil, fmt.Errorf("read the rules: %w", err)
	}
	var rules []Rule
	for _, group := range answer.Groups {
		rules = append(rules, group.Rules...)
	}
	return rules, nil
}

// get reads the data of an answer of Prometheus's HTTP API.
func (s *Server) get(path string, data any) error {
	response, err := s.client.Get("http://" + s.Address + "/api/v1/" + path)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var answer struct {
		Status string          `json:"status"`
		Data   json.RawMessage `json:"data"`
		Error  string          `json:"error"`
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return fmt.Errorf("%s: %w", response.Status, err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s", response.Status, answer.Error)
	}
	return json.Unmarshal(answer.Data, data)
}
