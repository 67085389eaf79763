package cli

import (
	"context"
	"io"
	"os"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/internal/deckfile"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/deck"
)

var validateCommand = &command{
	words: "validate",
	args:  "FILE ...",
	brief: "check the tenant-rate-limiting configs in decK files; FILE - is standard input",
	about: `It also finds faults that Kong's schema cannot express: duplicate names, ambiguous endpoint patterns, limits that cannot be
counted exactly. It exits with 1 when it finds a fault and with 0 when there are only warnings.`,
	most: -1,
	define: func(c *call) action {
		return func(context.Context) error { return c.validate() }
	},
}

// validate reports every fault and warning of the files, one on each line, as file:line: path: message.
func (c *call) validate() error {
	if len(c.args) == 0 {
		return wrong("name at least one decK file, for instance kong.yml")
	}
	faulty := false
	for _, file := range c.args {
		findings, err := c.validateFile(file)
		if err != nil {
			return wrong("%v", err)
		}
		out, faults := new(page), 0
		for _, f := range findings {
			out.line("%v", f)
			if f.Severity == deck.Error {
				faults++
			}
		}
		out.line("%s: %s, %s", file, counted(faults, "fault"), counted(len(findings)-faults, "warning"))
		if err := out.write(c.stdout); err != nil {
			return err
		}
		faulty = faulty || faults > 0
	}
	if faulty {
		return said(exitFailed)
	}
	return nil
}

func (c *call) validateFile(file string) (findings []deck.Finding, err error) {
	err = c.read(file, func(r io.Reader, name string) error {
		findings = deck.Validate(r, name, deckfile.Compiles)
		return nil
	})
	return findings, err
}

// read has a file read, with the name that messages give it; - is standard input.
func (o *operator) read(file string, do func(r io.Reader, name string) error) error {
	if file == "-" {
		return do(o.stdin, "standard input")
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	return do(f, file)
}
