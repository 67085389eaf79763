package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// machine is when and on what was measured.
type machine struct {
	date   time.Time
	cpu    string // model
	cores  int
	memory string // "" where it is not known, as the others below
	goes   string // Go's version
	redis  string // its version
	kernel string
}

// here is this machine, now.
func here() machine {
	release, _, _ := strings.Cut(first("/proc/sys/kernel/osrelease", ""), "-") // behind it is who built it
	return machine{
		date: time.Now().UTC(), cores: runtime.NumCPU(), memory: memory(), goes: runtime.Version(), redis: redisVersion(),
		kernel: strings.TrimSpace(runtime.GOOS + " " + release),
	}
}

// memory is how much there is; "" where that is not known.
func memory() string {
	fields := strings.Fields(first("/proc/meminfo", "MemTotal:"))
	if len(fields) != 3 {
		return ""
	}
	kib, err := strconv.ParseFloat(fields[1], 64)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%.0f GiB", kib/(1<<20))
}

// first is the first line of a file that begins so; "" if there is none.
func first(file, prefix string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return "" // not every system has it
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, prefix) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// redisVersion is that of the redis-server that tests start; "" without one.
func redisVersion() string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	text, err := exec.CommandContext(ctx, "redis-server", "--version").Output()
	if err != nil {
		return ""
	}
	_, version, _ := strings.Cut(string(text), "v=")
	version, _, _ = strings.Cut(version, " ")
	return version
}

// headline says what a reader must know to compare the numbers with others.
func (m machine) headline(command string) string {
	parts := []string{m.date.Format(time.DateOnly)}
	for _, part := range []struct{ format, text string }{
		{"%s", m.cpu},
		{"%s cores", fmt.Sprint(m.cores)},
		{"%s of memory", m.memory},
		{"%s", m.goes},
		{"Redis %s", m.redis},
		{"%s", m.kernel},
	} {
		if part.text != "" {
			parts = append(parts, fmt.Sprintf(part.format, part.text))
		}
	}
	line := "Measured " + strings.Join(parts, " · ") + "."
	if command != "" {
		line += " To repeat: `" + command + "`."
	}
	return line + "\n"
}
