package cli

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func init() { cobra.EnableCommandSorting = false } // the help lists commands as the table does

// sharedFlags are the flags that many commands have; the help lists them behind a command's own.
var sharedFlags = []string{"reason", "actor", "wait", "live-within", "database", "database-file", "output"}

// helpText returns the help of a command, of a group of commands, or of the program.
func helpText(c *cobra.Command) string {
	var b strings.Builder
	switch {
	case !c.HasParent():
		b.WriteString("usage: ratelimit COMMAND [flags]\n\n")
		writeBriefs(&b, c)
		b.WriteString(`
Flags may stand before or after the arguments. ratelimit COMMAND -h shows a command's flags.
Give the database as --database, RATELIMIT_DATABASE, or a file with --database-file.

` + exitCodes)
	case c.Short == "":
		fmt.Fprintf(&b, "usage: %s COMMAND [flags]\n\n", c.CommandPath())
		writeBriefs(&b, c)
	default:
		fmt.Fprintf(&b, "usage: %s\n\n%s.\n", c.UseLine(), strings.ToUpper(c.Short[:1])+c.Short[1:])
		if c.Long != "" {
			fmt.Fprintf(&b, "\n%s\n", c.Long)
		}
		writeFlags(&b, c.Flags())
		b.WriteString("\n" + exitCodes)
	}
	return b.String()
}

// writeFlags writes a command's own flags, and then the shared ones.
func writeFlags(b *strings.Builder, flags *pflag.FlagSet) {
	var own, shared []*pflag.Flag
	flags.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && !slices.Contains(sharedFlags, f.Name) {
			own = append(own, f)
		}
	})
	for _, name := range sharedFlags {
		if f := flags.Lookup(name); f != nil {
			shared = append(shared, f)
		}
	}
	for _, part := range [][]*pflag.Flag{own, shared} {
		if len(part) > 0 {
			b.WriteString("\n")
		}
		for _, f := range part {
			writeFlag(b, f)
		}
	}
}

func writeFlag(b *strings.Builder, f *pflag.Flag) {
	value, text := pflag.UnquoteUsage(f)
	name := "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	switch {
	case value == "":
	case f.NoOptDefVal != "":
		name += "[=" + value + "]"
	default:
		name += " " + value
	}
	fmt.Fprintf(b, "  %s\n      %s\n", name, text)
}

// writeBriefs writes one line for each command below another one.
func writeBriefs(b *strings.Builder, parent *cobra.Command) {
	w := tabwriter.NewWriter(b, 0, 0, 3, ' ', 0)
	for _, c := range leaves(parent) {
		usage := strings.TrimPrefix(strings.TrimSuffix(c.UseLine(), " [flags]"), "ratelimit ")
		fmt.Fprintf(w, "  %s\t%s\n", usage, c.Short)
	}
	_ = w.Flush() // a strings.Builder never fails
}

// leaves returns the commands below another one that do something, without hidden ones.
func leaves(parent *cobra.Command) []*cobra.Command {
	var list []*cobra.Command
	for _, c := range parent.Commands() {
		if c.Hidden {
			continue
		}
		if c.Short != "" {
			list = append(list, c)
		}
		list = append(list, leaves(c)...)
	}
	return list
}
