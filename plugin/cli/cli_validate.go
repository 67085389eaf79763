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
	brief: "check the plugin configs in decK files (- reads standard input)",
	about: `It applies the plugin's schema as Kong does, and also finds errors that the schema cannot express, such as
duplicate names, ambiguous endpoint patterns and limits that cannot be counted exactly. Warnings do not change the
exit code.`,
	most:  -1,
	exits: "0 no errors, 1 errors found, 2 usage error",
	define: func(c *call) action {
		return func(context.Context) error { return c.validate() }
	},
}

// validate reports every fault and warning of the files, one on each line, as file:line: path: message.
func (c *call) validate() error {
	if len(c.args) == 0 {
		return wrong("expected FILE ...: at least one decK file, such as kong.yml")
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
