package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/internal/process"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// command is one row of the table of commands.
type command struct {
	words string // "policy put"
	args  string // that stand beside the flags, as the usage names them
	brief string // what it does, in one line
	about string // what else there is to know; "": nothing
	least int    // fewest arguments
	most  int    // most arguments; -1: any number

	// trouble is the exit code of a failure, where exitFailed has another meaning; 0: exitFailed.
	trouble int

	// define defines the command's flags, and is what the command then does.
	define func(*call) action
}

// action is what a command does once its flags are parsed.
type action func(ctx context.Context) error

// call is one call of a command.
type call struct {
	*operator
	command *command
	flags   *flag.FlagSet
	args    []string       // beside the flags
	checks  []func() error // of what the flags say, before anything else is done
	act     action

	database databaseFlags
	change   changeFlags
	json     bool     // -o json
	yaml     bool     // -o yaml, of the commands that have it
	formats  []string // of -o, that the command has beside table and json
}

// commands are all commands, as the help lists them.
func commands() []*command {
	return slices.Concat(
		[]*command{validateCommand}, migrateCommands, tierCommands, tenantCommands, policyCommands, overrideCommands,
		documentCommands, []*command{explainCommand, auditCommand, fleetCommand, forgetCommand, topCommand}, bucketsCommands, []*command{serveCommand}, tokenCommands, []*command{tidyCommand, versionCommand})
}

var versionCommand = &command{
	words: "version", brief: "print the version",
	define: func(c *call) action {
		return func(context.Context) error {
			fmt.Fprintln(c.stdout, process.Version)
			return nil
		}
	},
}

// findCommand returns the command that the most of the first words name, and the words behind them.
func findCommand(args []string) (found *command, rest []string) {
	for _, c := range commands() {
		words := strings.Fields(c.words)
		if len(args) < len(words) || !slices.Equal(args[:len(words)], words) {
			continue
		}
		if behind := args[len(words):]; found == nil || len(behind) < len(rest) {
			found, rest = c, behind
		}
	}
	return found, rest
}

// newCall makes a call of a command, with its flags defined.
func newCall(o *operator, c *command) *call {
	call := &call{operator: o, command: c, flags: flag.NewFlagSet(c.words, flag.ContinueOnError)}
	call.flags.SetOutput(io.Discard) // errors are told by report, and help by help
	call.act = c.define(call)
	return call
}

// errHelped is the end of a command that was asked for its help.
var errHelped = errors.New("help was asked for")

func (c *call) run(ctx context.Context, args []string) error {
	if err := c.parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(c.stdout, c.help())
			return errHelped
		}
		return err
	}
	switch n := len(c.args); {
	case n < c.command.least:
		return wrong("expected %s", c.command.args)
	case c.command.most >= 0 && n > c.command.most:
		return wrong("unexpected argument %q", c.args[c.command.most])
	}
	for _, check := range c.checks {
		if err := check(); err != nil {
			return err
		}
	}
	return c.act(ctx)
}

// parse parses flags that stand before, between and behind the arguments. Behind -- everything is an argument.
func (c *call) parse(args []string) error {
	var plain []string
	if i := slices.Index(args, "--"); i >= 0 {
		args, plain = args[:i], args[i+1:]
	}
	for {
		if err := c.flags.Parse(args); err != nil {
			return flagFault(err)
		}
		if args = c.flags.Args(); len(args) == 0 {
			break
		}
		c.args = append(c.args, args[0])
		args = args[1:]
	}
	c.args = append(c.args, plain...)
	return nil
}

// check has something checked once the flags are parsed.
func (c *call) check(check func() error) { c.checks = append(c.checks, check) }

// arg is the first argument; "": there is none.
func (c *call) arg() string {
	if len(c.args) == 0 {
		return ""
	}
	return c.args[0]
}

// given tells whether a flag was given.
func (c *call) given(name string) bool {
	found := false
	c.flags.Visit(func(f *flag.Flag) { found = found || f.Name == name })
	return found
}

// warn tells something beside the output.
func (c *call) warn(format string, args ...any) {
	fmt.Fprintf(c.stderr, "ratelimit %s: %s\n", c.command.words, oneLine(fmt.Sprintf(format, args...)))
}

// usage is how the command is called, but for its flags.
func (c *command) usage() string {
	return strings.TrimSpace("ratelimit " + c.words + " " + c.args)
}

// sharedFlags are the flags that many commands have; the help lists them behind a command's own.
var sharedFlags = []string{"reason", "actor", "wait", "live-within", "database", "database-file", "o"}

// help is the help of the command.
func (c *call) help() string {
	var own, common []*flag.Flag
	c.flags.VisitAll(func(f *flag.Flag) {
		if !slices.Contains(sharedFlags, f.Name) {
			own = append(own, f)
		}
	})
	for _, name := range sharedFlags {
		if f := c.flags.Lookup(name); f != nil {
			common = append(common, f)
		}
	}
	usage := c.command.usage()
	if len(own)+len(common) > 0 {
		usage += " [flags]"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "usage: %s\n\n%s.\n", usage, strings.ToUpper(c.command.brief[:1])+c.command.brief[1:])
	if c.command.about != "" {
		fmt.Fprintf(&b, "\n%s\n", strings.TrimSpace(c.command.about))
	}
	for _, part := range [][]*flag.Flag{own, common} {
		if len(part) > 0 {
			b.WriteString("\n")
		}
		for _, f := range part {
			writeFlag(&b, f)
		}
	}
	b.WriteString("\n" + exitCodes)
	return b.String()
}

func writeFlag(b *strings.Builder, f *flag.Flag) {
	value, text := flag.UnquoteUsage(f)
	name := dashed(f.Name)
	if _, optional := f.Value.(*waitFlag); optional {
		name += "[=" + value + "]"
	} else if value != "" {
		name += " " + value
	}
	fmt.Fprintf(b, "  %s\n      %s\n", name, text)
}

// overview is the help of the program.
func overview() string {
	var b strings.Builder
	b.WriteString("usage: ratelimit COMMAND [flags]\n\n")
	writeBriefs(&b, commands())
	b.WriteString(`
Flags may stand before or after the arguments. ratelimit COMMAND -h shows a command's flags.
Give the database as --database, RATELIMIT_DATABASE, or a file with --database-file.

` + exitCodes)
	return b.String()
}

// helpOfGroup is the help of the commands that begin with the first word; false: there are none.
func helpOfGroup(args []string) (string, bool) {
	if len(args) == 0 {
		return "", false
	}
	var group []*command
	for _, c := range commands() {
		if strings.HasPrefix(c.words, args[0]+" ") {
			group = append(group, c)
		}
	}
	if len(group) == 0 {
		return "", false
	}
	var b strings.Builder
	fmt.Fprintf(&b, "usage: ratelimit %s COMMAND [flags]\n\n", args[0])
	writeBriefs(&b, group)
	return b.String(), true
}

func writeBriefs(b *strings.Builder, list []*command) {
	w := tabwriter.NewWriter(b, 0, 0, 3, ' ', 0)
	for _, c := range list {
		fmt.Fprintf(w, "  %s\t%s\n", strings.TrimPrefix(c.usage(), "ratelimit "), c.brief)
	}
	_ = w.Flush() // a strings.Builder never fails
}

func isHelp(word string) bool {
	return slices.Contains([]string{"-h", "-help", "--help", "help"}, word)
}
