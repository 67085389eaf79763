package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"os/user"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/migrations"
)

// Ratelimit is the operator's program. The result is the process's exit code; see [exitCodes].
func Ratelimit(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o := operator{
		getenv: os.Getenv, login: login, now: time.Now,
		stdin: stdin, stdout: screen{to: stdout}, stderr: screen{to: stderr},
	}
	return o.run(ctx, args)
}

// operator is the operator's program, with all that it knows of the world outside.
type operator struct {
	getenv func(string) string
	login  func() string // user@host; "": nobody can say
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

const exitCodes = `Exit codes: 0 done; 1 it failed, or it found something (validate, diff); 2 a usage error, and any failure of diff;
3 a live node does not enforce it yet, or no node is live; 4 all live nodes enforce it, but silent ones may not.
`

// wrongCall is an error of whoever calls the program.
type wrongCall struct{ problem string }

func (e *wrongCall) Error() string { return e.problem }

func wrong(format string, args ...any) error { return &wrongCall{fmt.Sprintf(format, args...)} }

// said is the end of a command that has told already why its exit code is not 0.
type said int

func (e said) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// run runs one command.
func (o *operator) run(ctx context.Context, args []string) int {
	if len(args) > 1 && args[0] == "help" {
		args = append(slices.Clone(args[1:]), "-h")
	}
	if len(args) > 0 && isHelp(args[0]) {
		fmt.Fprint(o.stdout, overview())
		return 0
	}
	c, rest := findCommand(args)
	if c == nil {
		if group, ok := helpOfGroup(args); ok {
			return o.showGroup(group, args)
		}
		fmt.Fprint(o.stderr, overview())
		if len(args) > 0 {
			fmt.Fprintf(o.stderr, "\nratelimit: unknown command %q\n", args[0])
		}
		return exitWrongCall
	}
	call := newCall(o, c)
	err := call.run(ctx, rest)
	return o.report(c, err)
}

// showGroup tells the commands of a group, such as policy: to who asks, or to who left a word out.
func (o *operator) showGroup(group string, args []string) int {
	if len(args) > 1 && isHelp(args[1]) {
		fmt.Fprint(o.stdout, group)
		return 0
	}
	fmt.Fprint(o.stderr, group)
	return exitWrongCall
}

// report tells an error in one line for each thing that is wrong, and is the exit code.
func (o *operator) report(c *command, err error) int {
	var (
		known    said
		mistaken *wrongCall
	)
	switch {
	case err == nil || errors.Is(err, errHelped):
		return 0
	case errors.As(err, &known):
		return int(known)
	case errors.As(err, &mistaken):
		fmt.Fprintf(o.stderr, "ratelimit %s: %s; see ratelimit %s -h\n", c.words, oneLine(mistaken.problem), c.words)
		return exitWrongCall
	}
	for _, each := range unjoined(err) {
		fmt.Fprintf(o.stderr, "ratelimit %s: %s\n", c.words, o.faultText(each))
	}
	if c.trouble != 0 {
		return c.trouble
	}
	return exitFailed
}

// faultText returns one line about an error, with what to do about it where that is clear.
func (o *operator) faultText(err error) string {
	if fault := migrations.ConnectFault(err, o.source); fault != "" {
		return oneLine(fault)
	}
	text := oneLine(err.Error())
	if advice := migrations.Advice(err); advice != "" && !(o.ahead && migrations.Lacks(err)) {
		text = advice + ": " + text
	}
	return text
}

// unjoined are the errors that one joins.
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

// login is who uses this machine, for the audit.
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
