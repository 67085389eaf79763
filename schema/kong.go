package schema

import (
	_ "embed"
	"encoding/json"
	"fmt"
)

// The names of the plugins in Kong. The executable has the name of the first.
const (
	Name         = "tenant-rate-limiting"
	SettlingName = "tenant-rate-settling" // the companion, which settles what limits have reserved
)

var (
	//go:embed kong_schema.json
	kongSchema []byte
	//go:embed settling_schema.json
	settlingSchema []byte
)

// Plugin is a plugin of a server info.
type Plugin struct {
	Name     string
	Phases   []string
	Version  string
	Priority int
	Schema   json.RawMessage // in the form of Kong's metaschema
}

// Limiting returns the plugin. It comes after authentication, acl (950) and opa (920), and before Kong's own limiters
// (910). It has no other phase than access: response would buffer bodies, and log would cost every request a timer.
func Limiting(version string) Plugin {
	return Plugin{Name, []string{"access"}, version, 912, kongSchema}
}

// Settling returns the companion plugin. It has no settings: a limit says what it settles. Its priority is one of
// Kong's log plugins, where the order makes no difference.
func Settling(version string) Plugin {
	return Plugin{SettlingName, []string{"log"}, version, 13, settlingSchema}
}

// Dump returns the server info that Kong reads from the standard output of pluginserver_*_query_cmd: the protocol, the
// socket on which the plugin server will listen, and the plugin. Kong shows the version in its Admin API.
func (p Plugin) Dump(socketPath string) []byte {
	info := struct {
		Protocol   string
		SocketPath string
		Plugins    []Plugin
	}{"ProtoBuf:1", socketPath, []Plugin{p}}
	dump, err := json.Marshal(info)
	if err != nil {
		panic(fmt.Sprintf("schema: the embedded Kong schema is not JSON: %v", err))
	}
	return append(dump, '\n')
}
