package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func init() { cobra.EnableCommandSorting = false } // the help lists commands as the table does

// commonFlags are the flags that many commands have; the help lists them behind a command's own.
var commonFlags = []string{"reason", "actor", "wait", "live-within", "database", "database-file", "output"}

// helpWidth is how many columns a line of the help has at most.
const helpWidth = 100

const (
	commonExits = "0 success, 1 failure, 2 usage error"
	fleetExits  = "3 some live nodes do not enforce the version yet, or no nodes are live; " +
		"4 all live nodes enforce it, but silent nodes may not"
)

// helpText returns the help of a command, of a group of commands, or of the program.
func helpText(c *cobra.Command) string {
	var b strings.Builder
	switch {
	case !c.HasParent():
		b.WriteString("usage: ratelimit COMMAND [flags]\n\n")
		writeBriefs(&b, c)
		b.WriteString("\n" + wrapText(rootAbout, ""))
	case c.Short == "":
		fmt.Fprintf(&b, "usage: %s COMMAND [flags]\n\n", c.CommandPath())
		writeBriefs(&b, c)
	default:
		fmt.Fprintf(&b, "usage: %s\n\n%s", c.UseLine(), wrapText(strings.ToUpper(c.Short[:1])+c.Short[1:]+".", ""))
		if c.Long != "" {
			b.WriteString("\n" + wrapText(c.Long, ""))
		}
		writeFlags(&b, c.Flags())
		b.WriteString("\n" + exitText(c))
	}
	return b.String()
}

const rootAbout = `Flags may come before or after arguments. Run ratelimit COMMAND -h for the flags of a command. Set
the database with --database, --database-file or the environment variable RATELIMIT_DATABASE. Tables are colored on a
terminal, unless NO_COLOR is set.

Exit codes: ` + commonExits + `. validate exits with 1 if it finds errors; diff exits with 1 if there are changes, and
with 2 if it fails. fleet, and every command with --wait: ` + fleetExits + `.`

// exitText describes the exit codes of a command.
func exitText(c *cobra.Command) string {
	text := "Exit codes: " + cmp.Or(c.Annotations[exitsAnnotation], commonExits)
	if c.Flags().Lookup("live-within") != nil {
		text += "; "
		if c.Flags().Lookup("wait") != nil {
			text += "with --wait: "
		}
		text += fleetExits
	}
	return wrapText(text+".", "")
}

// wrapText wraps the paragraphs of a text to helpWidth, each line indented. Lines that begin with a blank, such as
// examples, stay as they are.
func wrapText(text, indent string) string {
	var b strings.Builder
	width := 0 // of the line that is being filled
	end := func() {
		if width > 0 {
			b.WriteString("\n")
		}
		width = 0
	}
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, "\n"); line == "" || line[0] == ' ' {
			end()
			b.WriteString(line + "\n")
			continue
		}
		for word := range strings.FieldsSeq(line) {
			length := utf8.RuneCountInString(word)
			switch {
			case width > 0 && width+1+length <= helpWidth:
				b.WriteString(" ")
				width++
			default:
				end()
				b.WriteString(indent)
				width = len(indent)
			}
			b.WriteString(word)
			width += length
		}
	}
	end()
	return b.String()
}

// writeFlags writes a command's own flags, and then the shared ones.
func writeFlags(b *strings.Builder, flags *pflag.FlagSet) {
	var own, shared []*pflag.Flag
	flags.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && !slices.Contains(commonFlags, f.Name) {
			own = append(own, f)
		}
	})
	for _, name := range commonFlags {
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

// Annotations of flags and of commands.
const (
	valueAnnotation = "value" // what the help calls the value of a flag
	exitsAnnotation = "exits" // the exit codes 0 to 2
)

// unquoteUsage moves the name of a flag's value from the back quotes in its usage to an annotation: completions and man
// pages show the usage verbatim.
func unquoteUsage(f *pflag.Flag) {
	value, usage := pflag.UnquoteUsage(f)
	f.Usage = usage
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[valueAnnotation] = []string{value}
}

func writeFlag(b *strings.Builder, f *pflag.Flag) {
	name := "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	switch value := strings.Join(f.Annotations[valueAnnotation], ""); {
	case value == "":
	case f.NoOptDefVal != "":
		name += "[=" + value + "]"
	default:
		name += " " + value
	}
	fmt.Fprintf(b, "  %s\n%s", name, wrapText(f.Usage, "      "))
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
