package app

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/deck"
)

const ratelimitUsage = `usage: ratelimit COMMAND

  validate FILE ...   check the tenant-rate-limiting configs in decK files; FILE - is standard input
  version             print the version

validate finds what Kong's schema cannot say, too: duplicate names, ambiguous endpoint patterns, limits that cannot
be counted exactly. It exits with 1 when it finds a fault and with 0 when there are only warnings.
`

// Ratelimit is the operator's program. The result is the process's exit code: 2 for a wrong call.
func Ratelimit(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("ratelimit", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { fmt.Fprint(stderr, ratelimitUsage) }
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	switch flags.Arg(0) {
	case "validate":
		return validate(flags.Args()[1:], stdin, stdout, stderr)
	case "version":
		fmt.Fprintln(stdout, Version)
		return 0
	}
	flags.Usage()
	return 2
}

// validate reports every fault and warning of the files, one on each line, as file:line: path: message.
func validate(files []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(files) == 0 {
		fmt.Fprintln(stderr, "ratelimit validate: name at least one decK file, for instance kong.yml")
		return 2
	}
	code := 0
	for _, file := range files {
		findings, err := validateFile(file, stdin)
		if err != nil {
			fmt.Fprintln(stderr, "ratelimit validate:", err)
			return 2
		}
		faults := 0
		for _, f := range findings {
			fmt.Fprintln(stdout, f)
			if f.Severity == deck.Error {
				faults++
			}
		}
		fmt.Fprintf(stdout, "%s: %d faults, %d warnings\n", file, faults, len(findings)-faults)
		if faults > 0 {
			code = 1
		}
	}
	return code
}

func validateFile(file string, stdin io.Reader) ([]deck.Finding, error) {
	compiles := func(config schema.Config) error {
		_, err := policy.FromConfig(config)
		return err
	}
	if file == "-" {
		return deck.Validate(stdin, "standard input", compiles), nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return deck.Validate(f, file, compiles), nil
}
