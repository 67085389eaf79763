package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/routeconfig"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/deck"
)

var validateCommand = &command{
	words: "validate", args: "FILE ...",
	brief: "check the plugin configs in decK files, and files of policies (- reads standard input)",
	about: `It applies the plugin's schema as Kong does, and also finds errors that the schema cannot express, such as
duplicate names, ambiguous endpoint patterns and limits that cannot be counted exactly. A file of policies, as apply and
diff read it, is checked by itself, without a database. Warnings do not change the exit code. If none of the files has a
config of the plugin or is a file of policies, nothing was checked, and the exit code is 1.`,
	exits: "0 no errors, 1 errors found, or nothing to check in any file, 2 usage error",
	define: func(c *call) action {
		c.outputFlag()
		return func(context.Context) error { return c.validate() }
	},
}

type validated struct {
	File     string         `json:"file"`
	Faults   int            `json:"faults"`
	Warnings int            `json:"warnings"`
	Configs  int            `json:"configs"` // of the plugin that could be read
	Findings []deck.Finding `json:"findings"`

	isDocument bool // the file has policies, and no configs
}

// validate reports every fault and warning of the files; as text one on each line: file:line: severity: path: message.
func (c *call) validate() error {
	files, faults, checked := []validated{}, 0, false
	for _, file := range c.args {
		found, err := c.validateFile(file)
		if err != nil {
			return wrong("%v", err)
		}
		files, faults = append(files, found), faults+found.Faults
		checked = checked || found.Configs > 0 || found.isDocument
	}
	err := c.print(files, func(out *page) {
		for _, f := range files {
			f.writeTo(out)
		}
	})
	switch {
	case err != nil:
		return err
	case faults > 0:
		return exitStatus(exitFailed)
	case !checked:
		return fmt.Errorf("nothing was checked: no file has policies, or a config of %s", schema.Name)
	}
	return nil
}

func newValidated(file string, findings []deck.Finding) validated {
	found := validated{File: file, Findings: listed(findings)}
	for _, f := range findings {
		if f.Severity == deck.Error {
			found.Faults++
		} else {
			found.Warnings++
		}
	}
	return found
}

// writeTo writes the findings, and a last line that counts them.
func (v *validated) writeTo(out *page) {
	for _, f := range v.Findings {
		mark := yellowMark
		if f.Severity == deck.Error {
			mark = redMark
		}
		out.marked(mark, "%s", f)
	}
	out.line("%s: %s, %s", v.File, counted(v.Faults, "fault"), counted(v.Warnings, "warning"))
}

func (c *call) validateFile(file string) (found validated, err error) {
	text, name, err := c.readAll(file)
	switch {
	case err != nil:
		return found, err
	case isDocument(text):
		return validatedDocument(file, name, text), nil
	}
	configs := 0
	compiles := func(config schema.Config) error {
		configs++
		return routeconfig.Compiles(config)
	}
	found = newValidated(file, deck.Validate(bytes.NewReader(text), name, compiles))
	found.Configs = configs
	return found, nil
}

func validatedDocument(file, name string, text []byte) validated {
	d := &document{whole: true}
	_ = d.read(bytes.NewReader(text), name) // the faults joined
	var findings []deck.Finding
	for _, fault := range d.faults {
		if at := new(documentError); errors.As(fault, &at) {
			findings = append(findings, at.Finding)
		}
	}
	found := newValidated(file, findings)
	found.isDocument = true
	return found
}

// readAll returns what a file has, and its name for messages. The file - is standard input.
func (o *operator) readAll(file string) (text []byte, name string, err error) {
	if file == "-" {
		text, err = io.ReadAll(o.stdin)
		return text, "standard input", err
	}
	text, err = os.ReadFile(file)
	return text, file, err
}
