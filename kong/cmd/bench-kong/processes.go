package main

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/prometheus/procfs"
)

// groups are the processes whose CPU time is shown, by column.
type groups []group

type group struct {
	name    string
	command *regexp.Regexp // of the command line, its arguments separated by spaces
}

// defaultGroups finds the workers of Kong or the stand-in, the plugin or the floor, and Redis.
func defaultGroups() groups {
	return groups{
		{name: "kong", command: regexp.MustCompile(`^nginx: worker process|demo-gateway -config .*bench-kong`)},
		{name: "plugin", command: regexp.MustCompile(`^\S*(tenant-rate-limiting|bench-floor)( |$)`)},
		{name: "redis", command: regexp.MustCompile(`^\S*redis-server`)},
	}
}

// set adds a group, or replaces the one of its name.
func (g *groups) set(text string) error {
	name, pattern, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return fmt.Errorf("%q: must be like redis=^redis-server", text)
	}
	command, err := regexp.Compile(pattern)
	if err != nil {
		return err
	}
	for i := range *g {
		if (*g)[i].name == name {
			(*g)[i] = group{name: name, command: command}
			return nil
		}
	}
	*g = append(*g, group{name: name, command: command})
	return nil
}

// cpuSeconds returns how long the processes of each group have computed since their start, user and system time
// together; absent: there are none on this machine. Ended processes do not count.
func (g groups) cpuSeconds() (map[string]float64, error) {
	processes, err := procfs.AllProcs()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	seconds := map[string]float64{}
	for _, p := range processes {
		words, err := p.CmdLine()
		if err != nil {
			continue // it has ended
		}
		command := strings.TrimSpace(strings.Join(words, " "))
		for i := range g {
			if !g[i].command.MatchString(command) {
				continue
			}
			if stat, err := p.Stat(); err == nil {
				seconds[g[i].name] += stat.CPUTime()
			}
		}
	}
	return seconds, nil
}
