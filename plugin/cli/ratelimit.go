// Package cli is the ratelimit command. Each command is a row of a table (package variables such as policyCommands): it
// declares its words, help and flags, and returns what it does. newRoot makes cobra's tree of the rows, from which
// help, completions, man pages and docs/cli.md come.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"os/user"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/migrations"
)

// Ratelimit runs the operator's program. The result is the process's exit code; see [exitFailed].
func Ratelimit(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o := operator{
		getenv: os.Getenv, login: login, now: time.Now,
		stdin: stdin, stdout: screen{to: stdout, color: wantsColor(stdout, os.Getenv)}, stderr: screen{to: stderr},
	}
	return o.run(ctx, args)
}

// operator is the operator's program, with its access to the world outside.
type operator struct {
	getenv func(string) string
	login  func() string // user@host; "": unknown
	now    func() time.Time
	stdin  io.Reader
	stdout screen
	stderr screen
	source string // the flag or variable with the connection string of the database
	ahead  bool   // the tables are newer than this program: what it misses there, no migration of its own makes
}

// The exit codes beside 0.
const (
	exitFailed     = 1
	exitWrongCall  = 2
	exitIncomplete = 3
	exitSilent     = 4
)

type wrongCall struct{ problem string }

func (e *wrongCall) Error() string { return e.problem }

func wrong(format string, args ...any) error { return &wrongCall{fmt.Sprintf(format, args...)} }

// exitStatus is the exit code of a command that has already written why it is not 0.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// failure is an error with the exit code that it leads to.
type failure struct {
	error
	code int
}

// Unwrap returns the error.
func (e *failure) Unwrap() error { return e.error }

// run runs one command, and returns the exit code.
func (o *operator) run(ctx context.Context, args []string) int {
	root := o.newRoot()
	root.SetArgs(append([]string{}, args...)) // cobra takes those of the process in place of nil
	c, err := root.ExecuteContextC(ctx)
	return o.report(c, err)
}

// report writes an error, in one line for each thing that is wrong, and returns the exit code.
func (o *operator) report(c *cobra.Command, err error) int {
	var (
		status   exitStatus
		mistaken *wrongCall
		failed   *failure
	)
	code := exitFailed
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	case errors.As(err, &mistaken):
		fmt.Fprintf(o.stderr, "%s: %s; see %s -h\n", c.CommandPath(), oneLine(mistaken.problem), c.CommandPath())
		return exitWrongCall
	case errors.As(err, &failed):
		err, code = failed.error, failed.code
	}
	for _, each := range unjoined(err) {
		fmt.Fprintf(o.stderr, "%s: %s\n", c.CommandPath(), o.faultText(each))
	}
	return code
}

// faultText returns one line about an error, with what to do about it where that is clear.
func (o *operator) faultText(err error) string {
	if fault := migrations.ConnectFault(err, o.source); fault != "" {
		return oneLine(fault)
	}
	text := oneLine(migrations.PlainText(err))
	if advice := migrations.Advice(err); advice != "" && !(o.ahead && migrations.Lacks(err)) {
		text = advice + ": " + text
	}
	return text
}

func unjoined(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// oneLine joins the lines of a text, such as the attempts of pgx to connect.
func oneLine(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return plainText(strings.ReplaceAll(strings.Join(lines, "; "), ":; ", ": "))
}

// login returns who uses this machine, for the audit.
func login() string {
	name := os.Getenv("USER")
	if current, err := user.Current(); name == "" && err == nil {
		name = current.Username
	}
	host, err := os.Hostname()
	if name == "" || err != nil {
		return ""
	}
	return name + "@" + host
}
