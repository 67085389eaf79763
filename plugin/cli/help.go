package cli

import (
	"cmp"
	"errors"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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

// flagFault returns what is wrong with the flags of a call.
func flagFault(_ *cobra.Command, err error) error {
	if invalid := new(pflag.InvalidValueError); errors.As(err, &invalid) {
		return wrong("--%s: %q: %s", invalid.GetFlag().Name, invalid.GetValue(), valueFault(invalid))
	}
	return wrong("%v", err)
}

// valueFault returns what is wrong with the value of a flag.
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
