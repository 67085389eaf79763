package cli

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// suggestionDistance returns how many letters a suggestion for a name may differ by. Many short names differ by two.
func suggestionDistance(name string) int {
	if len(name) < len("list") {
		return 1
	}
	return 2
}

// flagFault returns what is wrong with the flags of a call, in a sentence that names the flag.
func flagFault(c *cobra.Command, err error) error {
	var (
		unknown   *pflag.NotExistError
		valueless *pflag.ValueRequiredError
		invalid   *pflag.InvalidValueError
		malformed *pflag.InvalidSyntaxError
	)
	switch {
	case errors.As(err, &unknown):
		return unknownFlag(c, unknown)
	case errors.As(err, &valueless):
		return wrong("--%s needs a value", valueless.GetFlag().Name)
	case errors.As(err, &invalid):
		return wrong("--%s: %q: %s", invalid.GetFlag().Name, invalid.GetValue(), valueFault(invalid))
	case errors.As(err, &malformed):
		return wrong("%q is not a flag", malformed.GetSpecifiedFlag())
	}
	return wrong("%v", err)
}

// valueFault returns what is wrong with the value of a flag.
func valueFault(err *pflag.InvalidValueError) string {
	fault := err.Unwrap()
	if err.GetFlag().Value.Type() == "bool" {
		return "must be true or false"
	}
	if errors.Is(fault, strconv.ErrRange) {
		return "is out of range"
	}
	if errors.Is(fault, strconv.ErrSyntax) {
		return "must be a whole number"
	}
	return fault.Error()
}

// unknownFlag returns the error of a flag that the command does not have, with the closest one that it has.
func unknownFlag(c *cobra.Command, err *pflag.NotExistError) error {
	name, dashes := err.GetSpecifiedName(), "--"
	if short := err.GetSpecifiedShortnames(); short != "" {
		name, dashes = short, "-"
	}
	name, _, _ = strings.Cut(name, "=")
	// cobra suggests commands only: so the flags stand in for commands.
	flags := cobra.Command{SuggestionsMinimumDistance: suggestionDistance(name)}
	if len(name) > 1 {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			flags.AddCommand(&cobra.Command{Use: f.Name, Hidden: f.Hidden, Run: func(*cobra.Command, []string) {}})
		})
	}
	return wrong("unknown flag %s%s%s", dashes, name, suggestion("--", likely(name, flags.SuggestionsFor(name))))
}

// likely returns those of the suggestions that begin as the name does, if there are any: few mistakes are in the first
// letter.
func likely(name string, suggestions []string) []string {
	alike := slices.DeleteFunc(slices.Clone(suggestions), func(s string) bool { return s[0] != name[0] })
	if len(alike) > 0 {
		return alike
	}
	return suggestions
}

// unknownCommand returns the error of a command that a group does not have, with the closest ones that it has.
func unknownCommand(group *cobra.Command, name string) error {
	group.SuggestionsMinimumDistance = suggestionDistance(name)
	return wrong("unknown command %q%s", name, suggestion(group.CommandPath()+" ", group.SuggestionsFor(name)))
}

func suggestion(before string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	return " (did you mean " + before + strings.Join(names, " or "+before) + "?)"
}

// checkDashes returns an error if args have the name of a long flag behind one dash. pflag reads it as short flags, of
// which the first may take the others as its value. It also returns an error if a flag that takes a value only behind =
// has one in the next word.
func checkDashes(flags *pflag.FlagSet, args []string) error {
	for i := 0; i < len(args) && args[i] != "--"; i++ {
		name, _, hasValue := strings.Cut(strings.TrimLeft(args[i], "-"), "=")
		flag := flags.Lookup(name)
		switch dashes := len(args[i]) - len(strings.TrimLeft(args[i], "-")); {
		case dashes == 1 && len(name) == 1:
			flag = flags.ShorthandLookup(name)
		case dashes == 1 && flag != nil:
			return wrong("-%s: long flags take two dashes: use --%s", name, name)
		case dashes != 2:
			continue
		}
		switch {
		case flag == nil || hasValue:
		case flag.NoOptDefVal == "":
			i++ // the value
		case i+1 < len(args) && looksLikeValue(flag, args[i+1]):
			return wrong("--%s %s: use --%s=%s", flag.Name, args[i+1], flag.Name, args[i+1])
		}
	}
	return nil
}

// looksLikeValue reports whether a word behind a flag that needs no value is meant as its value. pflag takes it as an
// argument, such as the name of a tier.
func looksLikeValue(flag *pflag.Flag, word string) bool {
	switch flag.Value.Type() {
	case "bool":
		return word == "true" || word == "false"
	case "duration":
		return new(waitFlag).Set(word) == nil
	}
	return false
}

// checkPlace returns an error if args, which stand behind a group, begin with a flag: cobra takes the word behind it as
// the flag's value, and does not find the command.
func checkPlace(group *cobra.Command, args []string) error {
	isGroup := group.HasSubCommands() && group.Short == ""
	if !isGroup || len(args) == 0 || !strings.HasPrefix(args[0], "-") {
		return nil
	}
	name, _, _ := strings.Cut(args[0], "=")
	word := strings.TrimLeft(name, "-")
	if word == "" || word == "h" || group.Flags().Lookup(word) != nil {
		return nil
	}
	command := group.CommandPath() + " COMMAND"
	behind := slices.IndexFunc(args, func(arg string) bool { return !strings.HasPrefix(arg, "-") })
	if behind > 0 {
		if found, _, err := group.Find(args[behind:]); err == nil && found.Short != "" {
			command = found.CommandPath()
		}
	}
	return wrong("%s: flags go after the command: %s %s", name, command, name)
}
