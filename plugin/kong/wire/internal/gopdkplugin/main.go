// The command gopdkplugin is the plugin that the benchmark of the socket compares with: it asks Kong the same
// question and sets the same headers through go-pdk's own client and server, and limits nothing.
package main

import (
	"log/slog"
	"os"

	"github.com/Kong/go-pdk"
	"github.com/Kong/go-pdk/server"
)

type config struct{}

// Access asks for the consumer and sets the headers of an admitted request.
func (config) Access(kong *pdk.PDK) {
	if _, err := kong.Client.GetConsumer(); err != nil {
		slog.Error("ask Kong", "error", err)
	}
	err := kong.Response.SetHeaders(map[string][]string{
		"X-RateLimit-Limit":     {"1000000000"},
		"X-RateLimit-Remaining": {"999999999"},
		"X-RateLimit-Reset":     {"1795236808"},
		"RateLimit-Policy":      {`"burst";q=1000000000;w=1`},
		"RateLimit":             {`"burst";r=999999999;t=1`},
	})
	if err != nil {
		slog.Error("ask Kong", "error", err)
	}
}

func main() {
	if err := server.StartServer(func() any { return &config{} }, "0.1.0", 912); err != nil {
		slog.Error("serve", "error", err)
		os.Exit(1)
	}
}
