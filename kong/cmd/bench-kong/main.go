// Command bench-kong measures what the plugin costs behind a Kong: requests per second, the 99th percentile, and the
// CPU time that Kong, the plugin and Redis use per request, beside no limiter, a plugin that does nothing, and Kong's
// own rate-limiting. Every round measures all routes, so other load affects all routes equally: compare the rows of one
// run, never two runs.
//
// It prints its routes as a declarative file, which decK or a Kong without a database reads. Once Kong has them, it
// sends requests.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
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
	proxy, upstream, redis string
	printConfig            bool

	rounds, connections int
	turn, ready         time.Duration
	only, skip          *regexp.Regexp
	processes           groups
}

func parse(args []string, stderr io.Writer) (*settings, error) {
	s := &settings{processes: defaultGroups()}
	flags := flag.NewFlagSet("bench-kong", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.BoolVar(&s.printConfig, "print-config", false, "print the routes as a decK file, and exit (needs -upstream)")
	flags.StringVar(&s.upstream, "upstream", "", "`URL` of the service as Kong reaches it, for -print-config")
	flags.StringVar(&s.proxy, "proxy", "http://127.0.0.1:8000", "`URL` of Kong's proxy listener, which has the routes")
	flags.StringVar(&s.redis, "redis", "",
		"Redis as Kong reaches it, `HOST:PORT` or a socket's path (default: rows with Redis are left out)")
	flags.IntVar(&s.rounds, "rounds", 3, "rounds; each number is the median over them")
	flags.IntVar(&s.connections, "connections", 16, "connections that send requests, each one after the other")
	flags.DurationVar(&s.turn, "turn", 5*time.Second,
		"how long a route is measured in a round; before that it gets requests for a tenth of it")
	flags.DurationVar(&s.ready, "ready-within", 30*time.Second, "how long Kong may take until it answers by a new route")
	expression := func(to **regexp.Regexp) func(string) error {
		return func(text string) (err error) {
			*to, err = regexp.Compile(text)
			return err
		}
	}
	flags.Func("only", "measure only rows whose name matches this `REGEXP`", expression(&s.only))
	flags.Func("skip", "leave out rows whose name matches this `REGEXP`: floor or kong, without their plugin",
		expression(&s.skip))
	flags.Func("process", "whose CPU time to show, `NAME=REGEXP` of command lines; may be repeated", s.processes.set)
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
	case s.turn <= 0:
		return errors.New("-turn: must be more than 0s")
	case s.printConfig && s.upstream == "":
		return errors.New("-print-config needs -upstream, the service as Kong reaches it")
	}
	return nil
}

// run runs the program. It returns 0, 1 for a failure, 2 for wrong usage.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	s, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "bench-kong:", err)
		return 2
	}
	bench := newBench(s)
	if s.printConfig {
		err = bench.writeDeclarative(stdout)
	} else {
		err = bench.measure(ctx, s, stdout, stderr)
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench-kong:", err)
		return 1
	}
	return 0
}
