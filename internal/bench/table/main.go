// The command benchtable turns the output of go test -bench into the Markdown of docs/benchmarks.md:
//
//	go test -run '^$' -bench . ./… | go run ./internal/bench/table -command 'make bench' NOTES.md…
//
// The head has the date, the machine and the command. Then comes a table for each top-level benchmark, in the order of
// the input: a row for each sub-benchmark, a column for each name=value in its name and for each of its metrics.
// Several runs of a benchmark become their median. The text of a notes file under the heading "## BenchmarkName Title"
// is put above the table of that benchmark. The text before its first heading is put below the head.
//
// Input with a failed test or benchmark is an error.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, thisMachine)) }

// run runs the program. After an error it prints no table.
func run(args []string, in io.Reader, stdout, stderr io.Writer, describe func() machine) int {
	flags := flag.NewFlagSet("benchtable", flag.ContinueOnError)
	flags.SetOutput(stderr)
	command := flags.String("command", "", "the `command` that repeats the measurement")
	across := flags.String("across", "", "`names`, separated by commas, whose values share a row: 1 / 8 / 64")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	text, err := document(in, describe(), *command, strings.Split(*across, ","), flags.Args())
	if err == nil {
		_, err = io.WriteString(stdout, text)
	}
	if err != nil {
		fmt.Fprintln(stderr, "benchtable:", err)
		return 1
	}
	return 0
}

// document returns the Markdown.
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
		s := n.section(g.name)
		fmt.Fprintf(&b, "\n## %s\n\n", s.title)
		if s.text != "" {
			b.WriteString(s.text + "\n\n")
		}
		newTable(g, across).write(&b)
	}
	return b.String(), nil
}
