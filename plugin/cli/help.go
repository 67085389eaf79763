package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
)

func init() { cobra.EnableCommandSorting = false } // the help lists commands as the table does

const (
	commonExits = "0 success, 1 failure, 2 usage error"
	fleetExits  = "3 some live nodes do not enforce the version yet, or no nodes are live;\n" +
		"4 all live nodes enforce it, but silent nodes may not"
)

const rootAbout = `The ratelimit command sets and shows the limits of tenants.

Run ratelimit COMMAND -h for the flags of a command. Set the database with --database, --database-file or the
environment variable RATELIMIT_DATABASE. Commands with --server work without one, by the REST API. Tables are colored on
a terminal, unless NO_COLOR is set.

Exit codes: ` + commonExits + `. validate exits with 1 if it finds errors; diff exits with 1 if
there are changes, and with 2 if it fails. fleet, and every command with --wait:
` + fleetExits + `.`

// aboutText returns what the help says above the usage: what the command does, and its exit codes.
func (c *call) aboutText() string {
	text := strings.ToUpper(c.command.brief[:1]) + c.command.brief[1:] + ".\n\n"
	if c.command.about != "" {
		text += strings.Trim(c.command.about, "\n") + "\n\n"
	}
	text += "Exit codes: " + cmp.Or(c.command.exits, commonExits)
	switch {
	case c.flags.Lookup("wait") != nil:
		text += "; with --wait:\n" + fleetExits
	case c.flags.Lookup("live-within") != nil:
		text += ";\n" + fleetExits
	}
	return text + "."
}

// namedValue is a flag's value with the name that the help gives it.
type namedValue struct {
	pflag.Value
	name string
}

// Type implements pflag.Value.
func (v namedValue) Type() string { return v.name }

// nameValue takes the name of a flag's value from between the back quotes in its usage, which completions and man pages
// would show. The usage names the default.
func nameValue(f *pflag.Flag) {
	f.DefValue = ""
	name, usage := pflag.UnquoteUsage(f)
	if f.Usage = usage; name != "" {
		f.Value = namedValue{f.Value, name}
	}
}

func flagFault(_ *cobra.Command, err error) error {
	if invalid := new(pflag.InvalidValueError); errors.As(err, &invalid) {
		return wrong("--%s: %q: %s", invalid.GetFlag().Name, invalid.GetValue(), valueFault(invalid))
	}
	return wrong("%v", err)
}

func valueFault(err *pflag.InvalidValueError) string {
	fault := err.Unwrap()
	switch {
	case err.GetFlag().Value.Type() == "bool":
		return "must be true or false"
	case errors.Is(fault, strconv.ErrRange):
		return "is out of range"
	case errors.Is(fault, strconv.ErrSyntax):
		return "must be a whole number"
	}
	return fault.Error()
}

const (
	completeTime = 2 * time.Second // how long a shell waits for names of the database
	maxCompleted = 100             // tenants
)

// complete defines the values that a shell completes for a flag.
func (c *call) complete(flag string, values ...string) {
	c.completeBy(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

func (c *call) completeBy(flag string, complete cobra.CompletionFunc) {
	if err := c.cobra.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err) // the flag is not defined yet, or completed already
	}
}

// completeNames has a shell complete the flags and the argument that name a tenant, a policy or a tier.
func (c *call) completeNames() {
	group, _, _ := strings.Cut(c.command.words, " ")
	argument := strings.Trim(c.command.args, "[]")
	for _, kind := range [...]string{"tenant", "policy", "tier"} {
		if c.flags.Lookup(kind) != nil {
			c.completeBy(kind, c.namesOf(kind))
		}
		if argument == strings.ToUpper(kind) || group == kind && (argument == "NAME" || argument == "ID") {
			c.cobra.ValidArgsFunction = c.namesOf(kind)
		}
	}
}

// namesOf completes names of a kind that begin with what is typed; of policies all. Without a database or a server that
// answers in time there are none: a shell shows no errors.
func (c *call) namesOf(kind string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, typed string) (names []string, _ cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
		defer cancel()
		path, query, most := policiesPath, url.Values{}, 0
		switch kind {
		case "tenant":
			path, query, most = orgsPath, url.Values{"prefix": {typed}, "usage": {"true"}}, maxCompleted
		case "tier":
			path, query = tiersPath, url.Values{"prefix": {typed}}
		}
		err := c.withDoor(ctx, func(ctx context.Context, rest *answers.Client) error {
			type row struct {
				ID   any
				Name string // a tenant has an id alone
			}
			for r, err := range answers.Each[row](ctx, rest, path, query, most) {
				if err != nil {
					return err
				}
				names = append(names, cmp.Or(r.Name, fmt.Sprint(r.ID)))
			}
			return nil
		})
		if err != nil {
			cobra.CompDebugln(err.Error(), false)
		}
		slices.Sort(names)
		return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
	}
}

var completionCommand = &command{
	words: "completion", args: "SHELL", brief: "print the completion script for bash, zsh or fish",
	about: `The script completes commands, flags and their values. It completes the names of tenants, policies and tiers
too if RATELIMIT_DATABASE names the database, or if the flags before them name the database or a server.

  ratelimit completion bash > /etc/bash_completion.d/ratelimit
  ratelimit completion zsh > "${fpath[1]}/_ratelimit"
  ratelimit completion fish > ~/.config/fish/completions/ratelimit.fish`,
	define: func(c *call) action {
		c.cobra.ValidArgs = []string{"bash", "zsh", "fish"}
		return func(context.Context) error {
			// A script has tabs, which a screen replaces. It is made of nothing but the names and texts of commands.
			switch root, out := c.cobra.Root(), c.stdout.to; c.arg() {
			case "bash":
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			case "fish":
				return root.GenFishCompletion(out, true)
			}
			return wrong("%q: the shell must be bash, zsh or fish", c.arg())
		}
	},
}

// manCommand writes the man pages that packages install.
var manCommand = &command{
	words: "man", args: "DIR", brief: "write a man page for each command to a directory",
	about: `  ratelimit man /usr/local/share/man/man1`,
	define: func(c *call) action {
		return func(context.Context) error {
			if err := os.MkdirAll(c.arg(), 0o755); err != nil {
				return err
			}
			root := c.cobra.Root()
			root.DisableAutoGenTag = true
			header := doc.GenManHeader{
				Section: "1",
				Source:  "tenant-rate-limiting " + process.Version,
				Manual:  "tenant-rate-limiting",
			}
			if err := doc.GenManTree(root, &header, c.arg()); err != nil {
				return fmt.Errorf("write the man pages: %w", err)
			}
			return nil
		}
	},
}
