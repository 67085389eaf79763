package spec

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// within is an option of start: Kong has these plugins too.
func within(plugins ...gateway.Plugin) func(*gateway.Options) {
	return func(o *gateway.Options) { o.Plugins = append(o.Plugins, plugins...) }
}

// lateInAccess returns a plugin of Kong's without settings. It runs in the access phase after the plugin under test.
func lateInAccess(t *testing.T, name string, access func(*gateway.PluginCall)) gateway.Plugin {
	t.Helper()
	info, err := gateway.ParsePluginInfo(fmt.Appendf(nil, `{"Protocol":"ProtoBuf:1","Plugins":[{"Name":%q,
		"Phases":["access"],"Priority":770,"Schema":{"name":%[1]q,"fields":[{"config":{"type":"record","fields":[]}}]}}]}`,
		name))
	require.NoError(t, err)
	return gateway.Plugin{Info: info, Access: access}
}

// requestTermination returns the plugin of Kong's that answers in place of the upstream.
func requestTermination(t *testing.T) gateway.Plugin {
	t.Helper()
	return gateway.Plugin{Info: kongPlugin(t, "request-termination"), Access: func(c *gateway.PluginCall) {
		status, _ := c.Config["status_code"].(float64)
		c.Exit(int(status), []byte(`{"message":"terminated"}`))
	}}
}
