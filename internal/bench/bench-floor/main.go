// Command bench-floor is the least that a Go plugin can do behind Kong: the floor that bench-kong and the benchmark of
// denials measure the plugin against. With {"exit": true} it asks who the consumer is and denies the request with a
// short body; there is no cheaper plugin that denies by name. Else it does nothing.
//
// With -loop wire it has the server loop of the plugin. With -loop least it has the least loop that can serve Kong, and
// denies with every config. With -loop phase it has the plugin's own server and configs, and buckets that admit
// everything: with a config without limits it asks Kong nothing and sets no headers, and with limits it asks and sets
// the same as the plugin, but spends nothing. It has no observers.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/phase"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire"
)

// dump is what Kong's query command must print. The priority is the plugin's own, so that both run after key-auth.
const dump = `{"Protocol": "ProtoBuf:1", "SocketPath": %q, "Plugins": [{"Name": "bench-floor", "Version": "0.1.0",
"Priority": 912, "Phases": ["access"], "Schema": {"name": "bench-floor", "fields": [{"config": {"type": "record",
"fields": [{"exit": {"type": "boolean", "default": false}}]}}]}}]}
`

func main() {
	prefix := flag.String("kong-prefix", "/usr/local/kong", "directory of the socket")
	loop := flag.String("loop", "wire", "what serves Kong: wire, least or phase")
	query := flag.Bool("dump", false, "print what Kong needs to know about the plugin, and exit")
	flag.Parse()
	socket := filepath.Join(*prefix, "bench-floor.socket")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	err := run(ctx, socket, *loop, *query, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-floor:", err)
		os.Exit(1)
	}
}

// run prints the dump, or serves Kong until ctx ends.
func run(ctx context.Context, socket, loop string, query bool, stdout io.Writer) error {
	if query {
		_, err := fmt.Fprintf(stdout, dump, socket)
		return err
	}
	// A server that was killed leaves its socket behind.
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	log.Info("serving Kong", "socket", socket, "loop", loop)
	switch loop {
	case "least":
		return serveLeast(ctx, listener)
	case "phase":
		return phase.New(phase.Options{Log: log, Build: build}).Serve(ctx, listener)
	}
	server := wire.New(wire.Options{Name: "bench-floor", Log: log, Start: start})
	return server.Serve(ctx, listener)
}

// start returns the instance of a config. Kong has checked the config.
func start(c wire.Config) wire.Instance {
	var config struct{ Exit bool }
	if err := json.Unmarshal(c.JSON, &config); err != nil {
		return wire.Instance{Access: func(context.Context, *wire.Event) error { return err }}
	}
	if config.Exit {
		return wire.Instance{Access: deny}
	}
	return wire.Instance{Access: func(context.Context, *wire.Event) error { return nil }}
}

const (
	getConsumer = "kong.client.get_consumer"
	body        = `{"message":"denied"}`
)

var consumer = []wire.Question{wire.NewQuestion(getConsumer, "")}

// deny reads one fact, as every plugin that limits consumers must, and denies.
func deny(_ context.Context, e *wire.Event) error {
	if err := e.Ask(consumer, func(int, []byte) error { return nil }); err != nil {
		return err
	}
	e.Exit(429, nil, []byte(body))
	return nil
}
