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

//go:embed kong_schema.json
var kongSchema []byte

// KongSchema returns the plugin's schema in the form of Kong's metaschema. The caller may change the returned bytes.
func KongSchema() []byte {
	return append([]byte(nil), kongSchema...)
}

// Dump returns the server info that Kong reads from the standard output of pluginserver_*_query_cmd: the protocol,
// the socket on which the plugin server will listen, and the one plugin with its schema. Kong shows version in its
// Admin API.
func Dump(version, socketPath string) []byte {
	type plugin struct {
		Name     string
		Phases   []string
		Version  string
		Priority int
		Schema   json.RawMessage
	}
	info := struct {
		Protocol   string
		SocketPath string
		Plugins    []plugin
	}{
		Protocol:   "ProtoBuf:1",
		SocketPath: socketPath,
		Plugins: []plugin{{
			Name: Name, Phases: []string{Phase}, Version: version, Priority: Priority, Schema: kongSchema,
		}},
	}
	dump, err := json.Marshal(info)
	if err != nil {
		panic(fmt.Sprintf("schema: the embedded Kong schema is not JSON: %v", err))
	}
	return append(dump, '\n')
}
