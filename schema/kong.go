package schema

import (
	_ "embed"
	"encoding/json"
	"fmt"
)

// Properties of the plugin in the server info, besides its schema.
const (
	Name     = "tenant-rate-limiting" // the plugin's name in Kong; the executable has the same name
	Priority = 912                    // after authentication, acl (950) and opa (920); before Kong's own limiters (910)
	Phase    = "access"               // the only phase; response would buffer bodies, log would cost every request a timer
)

// Properties of the companion plugin, which settles what limits have reserved.
const (
	SettlingName     = "tenant-rate-settling"
	SettlingPriority = 13 // among Kong's log plugins; the order makes no difference
	SettlingPhase    = "log"
)

var (
	//go:embed kong_schema.json
	kongSchema []byte
	//go:embed settling_schema.json
	settlingSchema []byte
)

// KongSchema returns the plugin's schema in the form of Kong's metaschema. The caller may change the returned bytes.
func KongSchema() []byte {
	return append([]byte(nil), kongSchema...)
}

// SettlingKongSchema returns the schema of the companion plugin. It has no settings: a limit says what it settles. The
// caller may change the returned bytes.
func SettlingKongSchema() []byte {
	return append([]byte(nil), settlingSchema...)
}

// Dump returns the server info that Kong reads from the standard output of pluginserver_*_query_cmd: the protocol, the
// socket on which the plugin server will listen, and the one plugin with its schema. Kong shows version in its Admin
// API.
func Dump(version, socketPath string) []byte {
	return dump(socketPath, pluginInfo{Name, []string{Phase}, version, Priority, kongSchema})
}

// DumpSettling returns the server info of the companion plugin, as [Dump] does.
func DumpSettling(version, socketPath string) []byte {
	return dump(socketPath, pluginInfo{SettlingName, []string{SettlingPhase}, version, SettlingPriority, settlingSchema})
}

// pluginInfo is one plugin of a server info.
type pluginInfo struct {
	Name     string
	Phases   []string
	Version  string
	Priority int
	Schema   json.RawMessage
}

func dump(socketPath string, plugin pluginInfo) []byte {
	info := struct {
		Protocol   string
		SocketPath string
		Plugins    []pluginInfo
	}{"ProtoBuf:1", socketPath, []pluginInfo{plugin}}
	dump, err := json.Marshal(info)
	if err != nil {
		panic(fmt.Sprintf("schema: the embedded Kong schema is not JSON: %v", err))
	}
	return append(dump, '\n')
}
