// The command benchtable turns what go test -bench has printed into the Markdown of docs/benchmarks.md:
//
//	go test -run '^$' -bench . ./… | go run ./plugin/internal/benchtable -command 'make bench' NOTES.md…
//
// The head says when, on what and with what was measured, and how to do it again. Then comes a table for each top-level
// benchmark, in the order of the input: a row for each sub-benchmark, a column for each name=value in its name and for
// each of its metrics. Of a benchmark that ran several times the median counts. What a notes file says under the
// heading "## BenchmarkName Title" stands above that benchmark's table, and what it says before its first heading below
// the head.
//
// It knows no benchmark and measures nothing. Input in which a test or benchmark failed is refused.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, here)) }

// run runs the program. It prints all or, after an error, nothing.
func run(args []string, in io.Reader, out, trouble io.Writer, where func() machine) int {
	flags := flag.NewFlagSet("benchtable", flag.ContinueOnError)
	flags.SetOutput(trouble)
	command := flags.String("command", "", "the `command` that repeats the measurement")
	across := flags.String("across", "", "`names`, separated by commas, whose values share a row: 1 / 8 / 64")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	text, err := document(in, where(), *command, strings.Split(*across, ","), flags.Args())
	if err == nil {
		_, err = io.WriteString(out, text)
	}
	if err != nil {
		fmt.Fprintln(trouble, "benchtable:", err)
		return 1
	}
	return 0
}

// document returns the whole text.
func document(in io.Reader, m machine, command string, across, files []string) (string, error) {
	measured, err := parse(in)
	if err != nil {
		return "", err
	}
	n := notes{sections: map[string]section{}}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("read notes: %w", err)
		}
		n.add(string(text))
	}
	m.cpu = measured.cpu
	var b strings.Builder
	b.WriteString(m.headline(command))
	for _, paragraph := range n.preface {
		b.WriteString("\n" + paragraph + "\n")
	}
	for _, g := range measured.groups {
		s := n.of(g.name)
		fmt.Fprintf(&b, "\n## %s\n\n", s.title)
		if s.text != "" {
			b.WriteString(s.text + "\n\n")
		}
		newTable(g, across).write(&b)
	}
	return b.String(), nil
}
