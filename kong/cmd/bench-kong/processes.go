package main

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/prometheus/procfs"
)

// groups has the command lines, their arguments separated by spaces, of the processes whose CPU time a column shows.
type groups map[string]*regexp.Regexp

// defaultGroups finds the workers of Kong or the stand-in, the plugin or the floor, and Redis.
func defaultGroups() groups {
	return groups{
		"kong":   regexp.MustCompile(`^nginx: worker process|demo-gateway -config .*bench-kong`),
		"plugin": regexp.MustCompile(`^\S*(tenant-rate-limiting|bench-floor)( |$)`),
		"redis":  regexp.MustCompile(`^\S*redis-server`),
	}
}

// set adds a group, or replaces the one of its name.
func (g groups) set(text string) (err error) {
	name, pattern, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return fmt.Errorf("%q: must be like redis=^redis-server", text)
	}
	g[name], err = regexp.Compile(pattern)
	return err
}

// cpuSeconds returns how long each process of a group has computed since its start, user and system time together, by
// pid; absent: the group has no process on this machine.
func (g groups) cpuSeconds() (map[string]map[int]float64, error) {
	processes, err := procfs.AllProcs()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	seconds := map[string]map[int]float64{}
	for _, p := range processes {
		words, err := p.CmdLine()
		if err != nil {
			continue // it has ended
		}
		command := strings.TrimSpace(strings.Join(words, " "))
		for name, pattern := range g {
			if !pattern.MatchString(command) {
				continue
			}
			if stat, err := p.Stat(); err == nil {
				if seconds[name] == nil {
					seconds[name] = map[int]float64{}
				}
				seconds[name][p.PID] = stat.CPUTime()
			}
		}
	}
	return seconds, nil
}

// computed returns how long the processes that were there before and after have computed in between. What one that
// ended or started meanwhile has computed is not known.
func computed(before, after map[int]float64) (seconds float64) {
	for pid, then := range before {
		if now, alive := after[pid]; alive {
			seconds += now - then
		}
	}
	return seconds
}
