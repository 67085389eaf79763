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

// machine describes the date and the machine of a measurement. A text is "" if it is unknown.
type machine struct {
	date      time.Time
	cpu       string // model
	cores     int
	memory    string
	goVersion string
	redis     string // version
	kernel    string
}

// thisMachine describes this machine, now.
func thisMachine() machine {
	release, _, _ := strings.Cut(firstLine("/proc/sys/kernel/osrelease", ""), "-") // without the build
	return machine{
		date: time.Now().UTC(), cores: runtime.NumCPU(), memory: memory(), goVersion: runtime.Version(),
		redis:  redisVersion(),
		kernel: strings.TrimSpace(runtime.GOOS + " " + release),
	}
}

// memory returns the size of the memory, or "".
func memory() string {
	fields := strings.Fields(firstLine("/proc/meminfo", "MemTotal:"))
	if len(fields) != 3 {
		return ""
	}
	kib, err := strconv.ParseFloat(fields[1], 64)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%.0f GiB", kib/(1<<20))
}

// firstLine returns the first line of a file with a prefix, or "".
func firstLine(file, prefix string) string {
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

// redisVersion returns the version of redis-server, or "".
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

// headline returns the line that describes the measurement.
func (m machine) headline(command string) string {
	parts := []string{m.date.Format(time.DateOnly)}
	for _, part := range []struct{ format, text string }{
		{"%s", m.cpu},
		{"%s cores", fmt.Sprint(m.cores)},
		{"%s of memory", m.memory},
		{"%s", m.goVersion},
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
