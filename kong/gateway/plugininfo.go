package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway/internal/fieldschema"
)

// PluginInfo describes a plugin as its server prints it for -dump, as far as Kong reads it.
type PluginInfo struct {
	Name     string
	Version  string
	Priority int
	Phases   []string
	Schema   json.RawMessage

	schema *fieldschema.Schema
}

// QueryPlugin runs "<binary> -dump", Kong's query command, in an empty environment and parses its output. A command
// that fails, invalid output and a schema that Kong does not load are errors, as at Kong's start.
func QueryPlugin(ctx context.Context, binary string) (*PluginInfo, error) {
	return queryPlugin(ctx, []string{binary, "-dump"})
}

func queryPlugin(ctx context.Context, query []string) (*PluginInfo, error) {
	command := exec.CommandContext(ctx, query[0], query[1:]...)
	command.Env = []string{}
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		return nil, fmt.Errorf("error loading plugins info from %v: %w: %s",
			query, err, strings.TrimSpace(stderr.String()))
	}
	info, err := ParsePluginInfo(stdout.Bytes())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(query, " "), err)
	}
	return info, nil
}

// ParsePluginInfo reads the JSON that -dump prints. Only the first plugin counts, as in Kong.
func ParsePluginInfo(dump []byte) (*PluginInfo, error) {
	var server struct {
		Protocol string
		Plugins  []*PluginInfo
	}
	if err := json.Unmarshal(dump, &server); err != nil {
		return nil, fmt.Errorf("failed decoding plugin info: %w", err)
	}
	if server.Protocol != "ProtoBuf:1" {
		return nil, fmt.Errorf("protocol %q: must be ProtoBuf:1", server.Protocol)
	}
	if len(server.Plugins) == 0 || server.Plugins[0] == nil {
		return nil, errors.New("no plugin in the plugin info")
	}
	info := server.Plugins[0]
	schema, err := fieldschema.Parse(info.Schema)
	if err != nil {
		return nil, err
	}
	if schema.Name() != info.Name || info.Name == "" {
		return nil, fmt.Errorf("plugin %q has the schema of %q", info.Name, schema.Name())
	}
	info.schema = schema
	return info, nil
}

// socketPath returns the path of a plugin server's socket: <prefix>/<executable>.socket.
func socketPath(prefix, binary string) string {
	return filepath.Join(prefix, filepath.Base(binary)+".socket")
}

// lookupEnvVault resolves a reference to Kong's env vault: {vault://env/some-name} is the variable SOME_NAME of the
// gateway's own environment, "" when it is not set.
func lookupEnvVault(reference string) string {
	name, ok := strings.CutPrefix(reference, "vault://env/")
	if !ok {
		return ""
	}
	return os.Getenv(strings.ToUpper(strings.ReplaceAll(name, "-", "_")))
}
