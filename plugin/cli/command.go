package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/calendar"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
)

// command is one row of the table of commands, from which newRoot makes cobra's tree.
type command struct {
	words string // "policy put"
	args  string // that stand beside the flags, as the usage names them: [X] may be left out, ... is any number
	brief string // what it does, in one line
	about string // what else there is to know; "": nothing

	// trouble is the exit code of a failure, where exitFailed has another meaning; 0: exitFailed.
	trouble int
	// exits describes the exit codes 0 to 2 where they differ from commonExits; "": they do not.
	exits string

	// define defines the command's flags, and returns what the command then does.
	define func(*call) action
}

// action is what a command does once its flags are parsed.
type action func(ctx context.Context) error

// call is one call of a command.
type call struct {
	*operator
	command *command
	cobra   *cobra.Command
	flags   *pflag.FlagSet
	args    []string       // beside the flags
	checks  []func() error // of what the flags say, before anything else is done
	act     action

	database databaseFlags
	door     doorFlags
	pool     *pgxpool.Pool // of the open database
	// configure adds the plugin's config to the options of the API in this process; nil: it has none.
	configure func(context.Context, *api.Options) error
	keeper    databaseFlags // of serve
	change    changeFlags
	format    string // of the output
}

// commands returns all commands, as the help lists them.
func commands() []*command {
	return slices.Concat(
		[]*command{validateCommand, importCommand},
		migrateCommands,
		tierCommands,
		tenantCommands,
		policyCommands,
		costCommands,
		priceCommands,
		candidateCommands,
		overrideCommands,
		[]*command{topUpCommand},
		documentCommands,
		[]*command{dumpCommand, replayCommand, suggestCommand, explainCommand, auditCommand},
		[]*command{fleetCommand, forgetCommand, topCommand},
		usageCommands,
		[]*command{denialsCommand},
		abuseCommands,
		bucketsCommands,
		[]*command{serveCommand},
		tokenCommands,
		webhookCommands,
		[]*command{tidyCommand, completionCommand, manCommand, versionCommand},
	)
}

var versionCommand = &command{
	words: "version",
	brief: "print the version and its commit, and the version of the time zones by which limits count periods",
	define: func(c *call) action {
		c.outputFlag()
		return func(context.Context) error {
			version := struct {
				Version  string `json:"version"`
				Commit   string `json:"commit,omitempty"`
				Date     string `json:"date,omitempty"`
				ZoneData string `json:"zone_data"`
			}{Version: process.Version, ZoneData: calendar.DataVersion}
			version.Commit, version.Date = process.Commit()
			return c.print(version, func(out *page) {
				out.line("%s (zone data %s)", process.VersionLine(), version.ZoneData)
			})
		}
	},
}

func (o *operator) newRoot() *cobra.Command {
	root := o.newGroup("ratelimit")
	root.Short, root.Long = "set and show the rate limits of tenants", rootAbout
	root.SilenceErrors, root.SilenceUsage = true, true // report writes them
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetOut(o.stdout.to) // completions have tabs, which a screen replaces
	root.SetErr(o.stderr)
	root.Version = process.VersionLine()
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(flagFault)
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", ".FlagUsagesWrapped 100"))
	for _, row := range commands() {
		parent := root
		if group, _, found := strings.Cut(row.words, " "); found {
			if parent = childOf(root, group); parent == nil {
				parent = o.newGroup(group)
				root.AddCommand(parent)
			}
		}
		parent.AddCommand(newCall(o, row).cobra)
	}
	return root
}

// childOf returns the command of that name right below another one, or nil.
func childOf(parent *cobra.Command, name string) *cobra.Command {
	for _, c := range parent.Commands() {
		if c.Name() == name {
			return c
		}
	}
	return nil
}

// newGroup returns a command that only has others below it.
func (o *operator) newGroup(name string) *cobra.Command {
	var below []string
	for _, row := range commands() {
		if word, found := strings.CutPrefix(row.words, name+" "); found {
			below = append(below, word)
		}
	}
	return &cobra.Command{
		Use: name, Short: strings.Join(below, ", "), DisableFlagsInUseLine: true, SuggestionsMinimumDistance: 2,
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true}, // an unknown command is the fault to report
		Args:               knownCommand,
		RunE: func(c *cobra.Command, _ []string) error {
			fmt.Fprint(o.stderr, c.UsageString())
			return exitStatus(exitWrongCall)
		},
	}
}

// knownCommand returns an error that names the command that a group does not have, with similar ones that it has.
func knownCommand(group *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	fault := fmt.Sprintf("unknown command %q", args[0])
	if similar := group.SuggestionsFor(args[0]); len(similar) > 0 {
		fault += " (did you mean " + strings.Join(similar, " or ") + "?)"
	}
	return wrong("%s", fault)
}

func newCall(o *operator, row *command) *call {
	use := row.words[strings.LastIndex(row.words, " ")+1:]
	c := &call{operator: o, command: row, format: formatTable}
	c.cobra = &cobra.Command{
		Use:   strings.TrimSpace(use + " " + row.args),
		Short: row.brief,
		Args:  cobra.ArbitraryArgs, // counted by run
		RunE:  func(cmd *cobra.Command, args []string) error { return c.run(cmd.Context(), args) },
	}
	if !strings.HasPrefix(row.args, "FILE") && !strings.HasPrefix(row.args, "DIR") {
		c.cobra.ValidArgsFunction = cobra.NoFileCompletions
	}
	c.flags = c.cobra.Flags()
	c.act = row.define(c)
	c.completeNames()
	c.cobra.Long = c.aboutText()
	c.flags.SortFlags = false
	c.flags.VisitAll(nameValue)
	return c
}

// run runs the command with the arguments beside its flags.
func (c *call) run(ctx context.Context, args []string) error {
	c.args = args
	named := strings.Fields(c.command.args)
	switch n := len(args); {
	case n < len(named)-strings.Count(c.command.args, "[")-strings.Count(c.command.args, "..."):
		return wrong("expected %s", c.command.args)
	case n > len(named) && !strings.Contains(c.command.args, "..."):
		return wrong("unexpected argument %q", args[len(named)])
	}
	for _, check := range c.checks {
		if err := check(); err != nil {
			return c.coded(err)
		}
	}
	return c.coded(c.act(ctx))
}

// coded returns an error with the exit code that failures of this command have.
func (c *call) coded(err error) error {
	if err == nil || c.command.trouble == 0 || errors.As(err, new(exitStatus)) || errors.As(err, new(*wrongCall)) {
		return err
	}
	return &failure{err, c.command.trouble}
}

// check registers a check that runs once the flags are parsed.
func (c *call) check(check func() error) { c.checks = append(c.checks, check) }

// wrongIf registers a check of what the flags say, with what is wrong with the call if it holds.
func (c *call) wrongIf(holds func() bool, format string, args ...any) {
	c.check(func() error {
		if holds() {
			return wrong(format, args...)
		}
		return nil
	})
}

// arg returns the first argument, or "".
func (c *call) arg() string {
	if len(c.args) == 0 {
		return ""
	}
	return c.args[0]
}

func (c *call) given(name string) bool { return c.flags.Changed(name) }

// givenOf returns those of some flags that were given, with their dashes.
func (c *call) givenOf(names ...string) (given []string) {
	for _, name := range names {
		if c.given(name) {
			given = append(given, "--"+name)
		}
	}
	return given
}

// warn writes a warning to standard error.
func (c *call) warn(format string, args ...any) {
	fmt.Fprintf(c.stderr, "ratelimit %s: %s\n", c.command.words, oneLine(fmt.Sprintf(format, args...)))
}
