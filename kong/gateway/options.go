package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"path/filepath"
	"time"
)

// EchoHost is the service host that the built-in upstream serves: it answers with the request's method, path, query and
// headers as JSON.
const EchoHost = "echo.internal"

// AnswerHost is the service host of the other built-in upstream, [ServeAnswer]. Its chunks arrive as one.
const AnswerHost = "answer.internal"

// Options configures a Gateway. Only Config is required; without Servers the gateway has only its bundled plugins.
type Options struct {
	// Config is the decK file to serve.
	Config *Config
	// Servers are the plugin servers, one for each external plugin.
	Servers []PluginServer
	// Plugins are plugins within the gateway, beside its bundled ones.
	Plugins []Plugin
	// Listen is the address of the proxy listener; "127.0.0.1:0" by default.
	Listen string
	// Prefix is Kong's prefix directory, which holds the sockets. By default it is a temporary one, which Close
	// removes. A unix socket's path must stay below 108 bytes.
	Prefix string
	// Workers is the number of simulated nginx workers; 2 by default.
	Workers int
	// TrustedIPs is Kong's trusted_ips: the peers whose X-Real-IP counts. By default there are none.
	TrustedIPs []string
	// MaxHeaderBytes bounds a request's line and headers; 32 KiB by default, nginx's 4 × 8k. A longer request gets a
	// 431, where Kong answers 400.
	MaxHeaderBytes int
	// ClaimWait bounds the wait of a request for an instance that another request has claimed. After it the request gets a
	// 500. The default is 10 s.
	ClaimWait time.Duration
	// NoticeAfter is the time that a worker takes to notice that the plugin has closed an idle connection. Until then it
	// may use the connection. The default is 2 ms.
	NoticeAfter time.Duration
	// Upstreams serve hosts of services within the process; EchoHost and AnswerHost are there by default.
	Upstreams map[string]http.Handler
	// Log gets Kong's error log; nothing is logged by default.
	Log *slog.Logger

	// replayFor bounds how long an event is replayed while the plugin keeps closing the connection; 2.7 s by default,
	// as seen on a real Kong.
	replayFor time.Duration
	// eventTimeout bounds how long a plugin may take for an event; 60 s by default.
	eventTimeout time.Duration
}

// PluginServer names an external plugin's server: a Binary that the gateway runs, or the Socket of one that something
// else runs, with its Info or the Query for it, as without pluginserver_*_start_cmd in Kong. One process may serve
// several plugins, each at its own socket.
type PluginServer struct {
	// Binary is the executable: run with -dump for the plugin's info, then with -kong-prefix and Args, and again when
	// it dies. Its socket is <prefix>/<name of the executable>.socket.
	Binary string
	// Args follow -kong-prefix on the command line.
	Args []string
	// Query is the command that prints the plugin's info: pluginserver_*_query_cmd.
	Query []string
	Info  *PluginInfo
	// Socket is a path; a relative one begins in the prefix.
	Socket string
}

// complete checks the options and sets the defaults.
func (o *Options) complete() error {
	if o.Config == nil {
		return errors.New("gateway: no config given")
	}
	if o.Prefix != "" {
		prefix, err := filepath.Abs(o.Prefix)
		if err != nil {
			return fmt.Errorf("gateway: prefix: %w", err)
		}
		o.Prefix = prefix
	}
	o.Listen, o.Workers = cmp.Or(o.Listen, "127.0.0.1:0"), cmp.Or(o.Workers, 2)
	o.MaxHeaderBytes = cmp.Or(o.MaxHeaderBytes, 32<<10)
	o.ClaimWait = cmp.Or(o.ClaimWait, 10*time.Second)
	o.NoticeAfter = cmp.Or(o.NoticeAfter, 2*time.Millisecond)
	o.replayFor = cmp.Or(o.replayFor, 2700*time.Millisecond)
	o.eventTimeout = cmp.Or(o.eventTimeout, callTimeout)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	upstreams := map[string]http.Handler{
		EchoHost: http.HandlerFunc(echo), AnswerHost: http.HandlerFunc(ServeAnswer),
	}
	maps.Copy(upstreams, o.Upstreams)
	o.Upstreams = upstreams
	return nil
}
