// Command bench-kong measures what the plugin costs behind a Kong: requests per second, the 99th percentile, and the
// CPU time that Kong, the plugin and Redis use per request, beside no limiter, a plugin that does nothing, and Kong's
// own rate-limiting. Every round measures all routes, so other load affects all routes equally: compare the rows of one
// run, never two runs.
//
// It adds routes of its own to the Kong by the Admin API and removes them at the end, or prints them as a declarative
// file for a Kong without a database. Without a Kong it starts the stand-in gateway.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// settings holds the command's flags.
type settings struct {
	proxy, admin string
	adminHeaders lines
	installed    bool
	printConfig  bool
	standIn      string
	plugins      lines

	upstream, redis, key string

	rounds, connections int
	turn, leadIn, ready time.Duration
	only                *regexp.Regexp
	processes           groups
	json                bool
}

// lines collects the values of a flag that may be repeated.
type lines []string

func (l *lines) String() string { return strings.Join(*l, ", ") }

func (l *lines) Set(value string) error {
	*l = append(*l, value)
	return nil
}

func parse(args []string, stderr io.Writer) (*settings, error) {
	s := &settings{processes: defaultGroups()}
	flags := flag.NewFlagSet("bench-kong", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.proxy, "proxy", "http://127.0.0.1:8000", "`URL` of Kong's proxy listener")
	flags.StringVar(&s.admin, "admin", "", "`URL` of Kong's Admin API, to add the routes and remove them at the end")
	flags.Var(&s.adminHeaders, "admin-header",
		"header of each request to the Admin API, \"`NAME: VALUE`\"; may be repeated")
	flags.BoolVar(&s.printConfig, "print-config", false, "print the routes as a declarative file, and exit")
	flags.BoolVar(&s.installed, "installed", false, "the routes that -print-config printed are in Kong (needs -key)")
	flags.StringVar(&s.standIn, "stand-in", "", "start this demo-gateway `PROGRAM` in place of a Kong (needs -plugin)")
	flags.Var(&s.plugins, "plugin", "plugin server's `PROGRAM`, with its flags, for -stand-in; may be repeated")
	flags.StringVar(&s.upstream, "upstream", "",
		"`URL` of the service as Kong reaches it (default one of this program, on loopback)")
	flags.StringVar(&s.redis, "redis", "",
		"Redis as Kong reaches it, `HOST:PORT` or a socket's path (default: rows with Redis are left out)")
	flags.StringVar(&s.key, "key", "", "API key of the requests (default a random one)")
	flags.IntVar(&s.rounds, "rounds", 3, "rounds; each number is the median over them")
	flags.IntVar(&s.connections, "connections", 16, "connections that send requests, each one after the other")
	flags.DurationVar(&s.turn, "turn", 5*time.Second, "how long a route is measured in a round")
	flags.DurationVar(&s.leadIn, "lead-in", 500*time.Millisecond, "how long it gets requests before that")
	flags.DurationVar(&s.ready, "ready-within", 30*time.Second, "how long Kong may take until it answers by a new route")
	flags.Func("only", "measure only rows whose name matches this `REGEXP`", func(text string) (err error) {
		s.only, err = regexp.Compile(text)
		return err
	})
	flags.Func("process", "whose CPU time to show, `NAME=REGEXP` of command lines; may be repeated", s.processes.set)
	flags.BoolVar(&s.json, "json", false, "print every turn as a line of JSON, not the table")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	return s, s.check(flags.NArg())
}

// check reports the first setting that cannot be used.
func (s *settings) check(arguments int) error {
	switch {
	case arguments > 0:
		return errors.New("there are no arguments, only flags")
	case s.rounds < 1 || s.connections < 1:
		return errors.New("-rounds and -connections: must be at least 1")
	case s.turn <= 0 || s.leadIn < 0:
		return errors.New("-turn: must be more than 0s, and -lead-in not less")
	case s.standIn != "" && len(s.plugins) == 0:
		return errors.New("-stand-in needs -plugin")
	case s.standIn != "" && (s.admin != "" || s.installed):
		return errors.New("-stand-in has no Admin API: leave out -admin and -installed")
	case s.installed && s.key == "":
		return errors.New("-installed needs -key, which -print-config printed")
	case !s.printConfig && s.standIn == "" && s.admin == "" && !s.installed:
		return errors.New("one of -admin, -print-config with -installed, and -stand-in is needed")
	case s.printConfig && s.upstream == "":
		return errors.New("-print-config needs -upstream, the service as Kong reaches it")
	}
	for name, address := range map[string]string{"-proxy": s.proxy, "-admin": s.admin, "-upstream": s.upstream} {
		if err := checkURL(address); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// checkURL reports what is wrong with the URL of a server, "" for none.
func checkURL(address string) error {
	if address == "" {
		return nil
	}
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("%q: must be like http://127.0.0.1:8000", address)
	}
	return nil
}

// run runs the program. It returns 0, 1 for a failure, 2 for wrong usage.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	stderr = &shared{w: stderr}
	s, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "bench-kong:", err)
		return 2
	}
	if err := s.run(ctx, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "bench-kong:", err)
		return 1
	}
	return 0
}

// shared lets this program and the stand-in write to the same place.
type shared struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

func (s *settings) run(ctx context.Context, stdout, stderr io.Writer) (err error) {
	if s.key == "" {
		s.key = "bench-kong-" + rand.Text()
	}
	if s.upstream == "" {
		upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "ok\n") // Kong may have gone
		}))
		defer upstream.Close()
		s.upstream = upstream.URL
	}
	s.proxy = strings.TrimSuffix(s.proxy, "/")
	bench := newBench(s)
	if s.printConfig {
		fmt.Fprintf(stderr, "run bench-kong with -installed -key %s when Kong has these entities\n", s.key)
		return bench.writeDeclarative(stdout)
	}
	remove, err := s.install(ctx, bench, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	for _, skipped := range bench.skipped {
		fmt.Fprintln(stderr, skipped)
	}
	return bench.measure(ctx, s, stdout, stderr)
}

// install brings the bench's routes into Kong, and returns the function that removes them.
func (s *settings) install(ctx context.Context, b *bench, stderr io.Writer) (remove func() error, err error) {
	switch {
	case s.standIn != "":
		b.skip("rate-limiting", "the stand-in does not have Kong's own plugins")
		if len(s.plugins) < 2 {
			b.skip("bench-floor", "-plugin does not name it")
		}
		gateway, err := startStandIn(ctx, s, b, stderr)
		if err != nil {
			return nil, err
		}
		s.proxy = gateway.url
		s.processes.childrenOf(gateway.command.Process.Pid)
		return gateway.stop, nil
	case s.admin != "":
		api := newAdminAPI(s.admin, s.adminHeaders)
		return api.install(ctx, b)
	default:
		return func() error { return nil }, nil
	}
}
