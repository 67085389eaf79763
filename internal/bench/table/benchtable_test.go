package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
)

// fixedMachine returns a machine that is the same in every run.
func fixedMachine() machine {
	return machine{
		date:  time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC),
		cores: 64, memory: "256 GiB", goVersion: "go9.9", redis: "9.9.9", kernel: "linux 9.9",
	}
}

// runOn runs the program on results.
func runOn(t *testing.T, results string, args ...string) (out, errors string, code int) {
	t.Helper()
	var stdout, stderr strings.Builder
	code = run(args, strings.NewReader(results), &stdout, &stderr, fixedMachine)
	return stdout.String(), stderr.String(), code
}

// read returns a file of testdata.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	return string(text)
}

func TestResultsBecomeATableForEachBenchmark(t *testing.T) {
	for file, args := range map[string][]string{
		"plain.md":  nil,
		"across.md": {"-command", "make bench", "-across", "goroutines,callers", filepath.Join("testdata", "notes.md")},
	} {
		got, errors, code := runOn(t, read(t, "results.txt"), args...)
		if code != 0 || errors != "" {
			t.Fatalf("%s: exit %d: %s", file, code, errors)
		}
		golden.Check(t, filepath.Join("testdata", file), got)
	}
}

func TestUntrustworthyInputIsAnError(t *testing.T) {
	const good = "BenchmarkA-2 1 5 ns/op\n"
	for name, test := range map[string]struct {
		results string
		args    []string
		want    string
	}{
		"no results":               {"PASS\nok example 0.1s\n", nil, "no results"},
		"a failed benchmark":       {good + "--- FAIL: BenchmarkB\n", nil, "failures"},
		"a failed package":         {good + "FAIL\texample 0.1s\n", nil, "failures"},
		"a panic":                  {good + "panic: oh\n", nil, "failures"},
		"a number that is not one": {"BenchmarkA-2 1 fast ns/op\n", nil, "fast"},
		"an incomplete line":       {"BenchmarkA-2 1 5\n", nil, "values with units"},
		"missing notes":            {good, []string{"testdata/none.md"}, "read notes"},
	} {
		out, errors, code := runOn(t, test.results, test.args...)
		if code != 1 || out != "" || !strings.Contains(errors, test.want) {
			t.Errorf("%s: exit %d, printed %q and the error %q, want %q", name, code, out, errors, test.want)
		}
	}
}

func TestAnUnknownOptionIsAnError(t *testing.T) {
	out, errors, code := runOn(t, "", "-no-such-option")
	if code != 2 || out != "" || !strings.Contains(errors, "no-such-option") {
		t.Errorf("exit %d, printed %q and the error %q", code, out, errors)
	}
}

func TestANumberHasThreeSignificantDigits(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.004169: "0.00417", 0.5: "0.5", 1: "1", 2.345: "2.35", 12.34: "12.3", 99.96: "100",
		123.4: "123", 936: "936",
		1000: "1,000", 77846.4: "77,846", 1234567: "1,234,567", -1234: "-1,234", -123: "-123",
	} {
		if got := number(v); got != want {
			t.Errorf("%v is written %q, want %q", v, got, want)
		}
	}
}

func TestSeveralRunsAreOneMedian(t *testing.T) {
	out, _, _ := runOn(t, "BenchmarkA-2 1 5 ns/op\nBenchmarkA-2 1 900 ns/op\nBenchmarkA-2 1 7 ns/op\n")
	if !strings.Contains(out, "|  | 7 |") {
		t.Errorf("the median of 5, 900 and 7 is 7, not in\n%s", out)
	}
}

func TestThisMachineIsDescribed(t *testing.T) {
	m := thisMachine()
	if m.cores < 1 || m.goVersion == "" || m.kernel == "" || time.Since(m.date) > time.Hour {
		t.Errorf("this machine is %+v", m)
	}
}
