package gateway

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
)

// logFrame holds a line of the recording of the log phase.
type logFrame struct {
	frame
	N, Conn int
	Server  string
}

// logCase holds a case of the recording.
type logCase struct {
	name             string
	configs          map[string]map[string]any // of StartInstance, by plugin
	requests, events int                       // events of rec-log: more than requests where some were replayed
}

// logCases holds the recording.
type logCases struct {
	order     []string
	named     map[string]*logCase
	conns     [][]logFrame
	arguments map[string][]byte // by method=argument
}

func readLogCases(t *testing.T) *logCases {
	t.Helper()
	r := &logCases{named: map[string]*logCase{}, arguments: map[string][]byte{}}
	for _, f := range recordedFrames(t, "testdata/kong-3.9.3-log.jsonl") {
		r.add(t, f)
	}
	return r
}

func (r *logCases) add(t *testing.T, f logFrame) {
	t.Helper()
	for len(r.conns) < f.Conn {
		r.conns = append(r.conns, nil)
	}
	r.conns[f.Conn-1] = append(r.conns[f.Conn-1], f)
	if step, ok := strings.CutPrefix(f.Label, "args of "); ok {
		r.arguments[step] = f.bytes(t)
	}
	if f.Label == "closed by the plugin" {
		r.named[f.Case].requests--
	}
	if f.Label != "RpcCall" {
		return
	}
	var call pb.RpcCall
	require.NoError(t, proto.Unmarshal(f.bytes(t), &call))
	switch start := call.GetCmdStartInstance(); {
	case start != nil:
		r.addConfig(t, f.Server, start.Config)
	case f.Server == "rec-log":
		r.named[f.Case].requests++
		r.named[f.Case].events++
	}
}

func (r *logCases) addConfig(t *testing.T, server string, text []byte) {
	t.Helper()
	var config map[string]any
	require.NoError(t, json.Unmarshal(text, &config))
	name := config["case"].(string)
	if r.named[name] == nil {
		r.named[name] = &logCase{name: name, configs: map[string]map[string]any{}}
		r.order = append(r.order, name)
	}
	r.named[name].configs[server] = config
}

// route returns the name of a case's route. Its path is the same.
func (c *logCase) route() string {
	switch {
	case c.name == "log-chunked":
		return "chunked"
	case c.name == "log-client-closed":
		return "slow"
	case c.asksOne():
		method := strings.TrimPrefix(strings.TrimPrefix(c.name, "log-asks "), "kong.")
		return "asks-" + strings.NewReplacer(".", "-", "_", "-").Replace(method)
	}
	return c.name
}

func (c *logCase) asksOne() bool { return strings.HasPrefix(c.name, "log-asks ") }

// authenticates reports whether the case's route has key-auth.
func (c *logCase) authenticates() bool {
	return c.asksOne() || c.name == "log-key-auth-401" || c.hasKey()
}

// hasKey reports whether the case's request has alice's key.
func (c *logCase) hasKey() bool {
	return c.asksOne() || c.name == "log-serialize" || c.name == "log-serialize-after-exit"
}

// request returns the lines of the case's request.
func (c *logCase) request() []string {
	target := "/" + c.route()
	switch {
	case c.name == "log-no-route":
		target = "/nowhere"
	case c.name == "log-serialize":
		target += "/records/7?x=y"
	case c.asksOne():
		target += "?x=y"
	}
	lines := []string{
		"GET " + target + " HTTP/1.1", "Host: 127.0.0.1:8030", "User-Agent: rec/1", "Accept: */*", "Connection: close",
		"X-User-Id: u_7",
	}
	if c.hasKey() {
		lines = append(lines, "apikey: alice-key")
	}
	return lines
}

// logCreated is when the recorded entities were created.
const logCreated = 1795306717

// config returns the config under which the cases were recorded.
func (r *logCases) config(t *testing.T) *Config {
	t.Helper()
	entity := func(fields map[string]any) map[string]any {
		fields["created_at"], fields["updated_at"] = logCreated, logCreated
		return fields
	}
	const upID = "7b6f0409-e5ce-5e62-8d83-de7316914b2f"
	var up, refused, global []any
	for _, name := range r.order {
		c := r.named[name]
		id, routed := c.configs["rec-log"]["route_id"]
		if !routed {
			global = c.plugins()
			continue
		}
		route := entity(map[string]any{
			"id": id, "name": c.route(), "paths": []string{"/" + c.route()}, "strip_path": false,
			"tags": []string{"route-tag", "tier:gold"}, "plugins": c.plugins(),
		})
		if name == "log-upstream-refused" {
			refused = append(refused, route)
			continue
		}
		up = append(up, route)
	}
	document, err := json.Marshal(map[string]any{
		"_format_version": "3.0", "plugins": global,
		"services": []any{
			map[string]any{"id": upID, "name": "up", "url": "http://127.0.0.1:9930", "routes": up},
			map[string]any{"name": "refused", "url": "http://localhost:1", "routes": refused},
		},
		"consumers": []any{entity(map[string]any{
			"id": "6384e2b2-184b-5bf5-8ecc-f10ca7a6563c", "username": "alice", "custom_id": "acme",
			"tags": []string{"org:acme", "tier:enterprise"},
			"keyauth_credentials": []any{
				map[string]any{"id": "89bb72aa-5345-58c1-846b-97b704e366e5", "key": "alice-key"},
			},
		})},
	})
	require.NoError(t, err)
	config, err := ParseConfig(document)
	require.NoError(t, err)
	return config
}

// plugins returns the plugins of a case's route.
func (c *logCase) plugins() []any {
	var plugins []any
	for name, config := range c.configs {
		given := map[string]any{"case": config["case"], "do": config["do"], "pipelined": config["pipelined"]}
		plugins = append(plugins, map[string]any{"name": name, "id": config["__plugin_id"], "config": given})
	}
	if c.authenticates() {
		plugins = append(plugins, map[string]any{"name": "key-auth"})
	}
	if c.name == "log-request-termination" {
		plugins = append(plugins, map[string]any{"name": "request-termination"})
	}
	return plugins
}

// logInfo returns the info of a plugin with one phase.
func logInfo(t *testing.T, name string, priority int, phases ...string) *PluginInfo {
	t.Helper()
	names, err := json.Marshal(phases)
	require.NoError(t, err)
	info, err := ParsePluginInfo(fmt.Appendf(nil, `{"Protocol": "ProtoBuf:1", "SocketPath": "", "Plugins": [
		{"Name": %q, "Phases": %s, "Version": "1.0", "Priority": %d, "Schema": {"name": %[1]q, "fields": [
			{"config": {"type": "record", "required": true, "fields": [{"case": {"type": "string"}},
			{"do": {"type": "array", "elements": {"type": "string"}}}, {"pipelined": {"type": "boolean"}}]}}]}}]}`,
		name, names, priority))
	require.NoError(t, err)
	return info
}
