// Command demo-gateway runs the stand-in gateway in front of a plugin server. With -session it plays a short scripted
// session, and fails if the plugin answers otherwise. With -chats it spends budgets of 1 USD by concurrent chats,
// and fails if reservations do not keep them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// companion is the plugin that settles what requests have reserved.
const companion = "tenant-rate-settling"

// settings holds the command's flags.
type settings struct {
	config, listen       string
	plugins              []gateway.PluginServer
	workers              int
	session, once, chats bool
}

func parse(args []string, stderr io.Writer) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("demo-gateway", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.config, "config", "kong.yml", "decK file to serve")
	flags.Func("plugin", "plugin server's executable, with its flags (required); may be repeated", func(text string) error {
		words := strings.Fields(text)
		if len(words) == 0 {
			return errors.New("must be the path of an executable")
		}
		s.plugins = append(s.plugins, gateway.PluginServer{Binary: words[0], Args: words[1:]})
		return nil
	})
	flags.StringVar(&s.listen, "listen", "127.0.0.1:8000", "address to listen on; port 0 for any")
	flags.IntVar(&s.workers, "workers", 2, "simulated nginx workers")
	flags.BoolVar(&s.session, "session", false, "play the scripted session, fail if it differs, then serve on")
	flags.BoolVar(&s.once, "once", false, "play the scripted session and exit")
	flags.BoolVar(&s.chats, "chats", false, "play the chats for kong-llm.yml, fail if a budget is not kept, and exit")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if s.chats && (s.session || s.once) {
		flags.Usage()
		return s, errors.New("-chats is a session of its own: leave out -session and -once")
	}
	if flags.NArg() > 0 || len(s.plugins) == 0 || s.workers < 1 {
		flags.Usage()
		return s, errors.New("need -plugin, at least one worker and no further arguments")
	}
	if s.chats { // an answer that waits too long fails the session
		s.plugins[0].Args = append(s.plugins[0].Args, "-time-budget", chatTimeout.String())
	}
	return s, nil
}

// run runs the program. It returns 0, 1 for a failure or an unexpected session, 2 for wrong usage.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	s, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "demo-gateway:", err)
		return 2
	}
	if err := serve(ctx, s, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "demo-gateway:", err)
		return 1
	}
	return 0
}

func serve(ctx context.Context, s settings, stdout, stderr io.Writer) (err error) {
	config, err := gateway.LoadConfig(s.config)
	if err != nil {
		return err
	}
	llm := newModelServer()
	g, err := gateway.New(gateway.Options{
		Config: config, Listen: s.listen, Workers: s.workers,
		Servers: withCompanion(config, s.plugins), TrustedIPs: []string{"127.0.0.1"}, // so that X-Real-IP can be tried
		Upstreams: map[string]http.Handler{modelHost: llm},
		// Kong's default log level hides the plugin's own lines, which are at info
		Log: slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	if err := g.Start(ctx); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	fmt.Fprintf(stdout, "gateway %s   plugin pid %d\n\n", g.URL(), g.PluginPID())
	played := play(ctx, s, g, llm, stdout)
	if s.once || s.chats || played != nil {
		return played
	}
	lines, err := curlLines(config, g.URL())
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "Try it:\n%s\nserving until interrupted\n", lines)
	<-ctx.Done()
	return nil
}

// withCompanion adds the companion plugin, if the config has it. The process of the first plugin server serves it too.
func withCompanion(config *gateway.Config, servers []gateway.PluginServer) []gateway.PluginServer {
	for _, plugin := range config.Plugins {
		if plugin.Name == companion {
			return append(servers, gateway.PluginServer{
				Query: []string{servers[0].Binary, "-dump-settling"}, Socket: companion + ".socket",
			})
		}
	}
	return servers
}

// play plays the session that a flag requests, if any.
func play(ctx context.Context, s settings, g *gateway.Gateway, llm *modelServer, stdout io.Writer) (err error) {
	switch {
	case s.chats:
		err = playChats(ctx, g.URL(), llm, g.Counters().LogEvents.Load, stdout)
	case s.session || s.once:
		err = playSession(ctx, g.URL(), stdout)
	default:
		return nil
	}
	if err != nil {
		return fmt.Errorf("session: %w", err)
	}
	if replays := g.Counters().Replays.Load(); replays > 0 {
		return fmt.Errorf("session: %d events were replayed", replays)
	}
	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}
