package server

import (
	"bytes"
	"errors"
	"log/slog"
	"log/syslog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// logged starts a log into a file, has write log, and returns the settings' file and stderr as they are afterwards.
func logged(t *testing.T, change func(*settings), write func(*logging)) (file, stderr string) {
	t.Helper()
	s := &settings{LogFile: filepath.Join(t.TempDir(), "log"), LogFileSize: 1 << 20, LogFileKeep: 2}
	change(s)
	var out bytes.Buffer
	l := newLogging(s, &out)
	write(l)
	l.close()
	text, err := os.ReadFile(s.LogFile)
	require.True(t, err == nil || s.LogFile == "stderr", "%v", err)
	return string(text), out.String()
}

func TestWarningsAndErrorsReachAFileThatKongDoesNotFilter(t *testing.T) {
	file, stderr := logged(t, func(s *settings) { s.LogLevel = slog.LevelWarn }, func(l *logging) {
		l.Info("quiet")
		l.With("store", "main").Warn("away")
		l.Error("broken")
		if got := l.counted(); got["warn"] != 1 || got["error"] != 1 || got["info"] != 0 {
			t.Errorf("counted %v, want one warning and one error", got)
		}
	})
	lines := strings.Split(strings.TrimSpace(file), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], `"level":"WARN"`) ||
		!strings.Contains(lines[0], `"store":"main"`) || !strings.Contains(lines[1], `"msg":"broken"`) {
		t.Errorf("the file has %q", file)
	}
	assert.Empty(t, stderr, "stderr")
}

func TestTheLogIsTextWhereThatIsWanted(t *testing.T) {
	_, stderr := logged(t,
		func(s *settings) { s.LogFile, s.LogText = "stderr", true },
		func(l *logging) { l.Warn("away", "for", 3) })
	assert.True(t, strings.Contains(stderr, "level=WARN msg=away for=3\n"), "stderr has %q", stderr)
}

func TestALogFileThatIsFullIsRotatedAndOneThatIsMovedIsBegunAnew(t *testing.T) {
	var path string
	file, _ := logged(t, func(s *settings) { path, s.LogFileSize = s.LogFile, 200 }, func(l *logging) {
		for range 10 {
			l.Warn("a line of the log that fills its file")
		}
	})
	for _, name := range []string{path + ".1", path + ".2"} {
		if _, err := os.Stat(name); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(path + ".3"); err == nil {
		t.Error("more full files are kept than -log-file-keep says")
	}
	assert.True(t, len(file) <= 400, "the file has %d bytes", len(file))
}

func TestALogFileThatCannotBeOpenedStopsNothingAndIsOpenedLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "missing", "log")
	var stderr bytes.Buffer
	l := newLogging(&settings{LogFile: path, LogFileSize: 1 << 20, LogFileKeep: 2}, &stderr)
	if text := stderr.String(); !strings.Contains(text, "cannot open -log-file") || !strings.Contains(text, path) {
		t.Errorf("stderr has %q; want the flag and the file", text)
	}
	require.NoError(t, os.Mkdir(filepath.Dir(path), 0o700))
	l.Error("broken")
	l.close()
	if text, err := os.ReadFile(path); err != nil || !strings.Contains(string(text), `"msg":"broken"`) {
		t.Errorf("the file has %q (%v), once it can be opened", text, err)
	}
}

func TestAMachineWithoutSyslogGetsItsLinesOnStderr(t *testing.T) {
	var stderr bytes.Buffer
	system := &systemLog{dial: func() (*syslog.Writer, error) { return nil, errors.New("nothing listens") }}
	out := orStderr{func(line string) error { return system.write((*syslog.Writer).Err, line) }, &stderr}
	if _, err := out.Write([]byte("a line\n")); err != nil {
		t.Error(err)
	}
	if text := stderr.String(); !strings.Contains(text, "nothing listens") || !strings.HasSuffix(text, "a line\n") {
		t.Errorf("stderr has %q", text)
	}
	assert.NoError(t, system.Close())
}

func TestLinesThatTheLogFileDoesNotTakeGoToStderr(t *testing.T) {
	var dir string
	s := &settings{LogFile: filepath.Join(t.TempDir(), "d", "log")}
	if dir = filepath.Dir(s.LogFile); os.Mkdir(dir, 0o700) != nil {
		t.Fatal("cannot make a folder")
	}
	var stderr bytes.Buffer
	l := newLogging(s, &stderr)
	require.NoError(t, os.RemoveAll(dir))
	l.Error("broken")
	l.close()
	text := stderr.String()
	if !strings.Contains(text, "cannot write to -log-file") || !strings.Contains(text, `"msg":"broken"`) {
		t.Errorf("stderr has %q", text)
	}
}

func TestTheLogShowsNoCharacterOfANameThatATerminalObeys(t *testing.T) {
	for _, text := range []bool{false, true} {
		var stderr bytes.Buffer
		l := newLogging(&settings{LogFile: "stderr", LogText: text}, &stderr)
		l.Warn("a row is left out", "tenant", "\u202eemca", "error", errors.New("tier \u009b2J"))
		l.close()
		if line := stderr.String(); !strings.Contains(line, `\u202eemca`) || strings.ContainsAny(line, "\u202e\u009b") {
			t.Errorf("the log (text: %t) has %q", text, line)
		}
	}
}
