package policysync

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestADifferenceOfClocksIsLoggedWhenItBeginsAndWhenItEnds(t *testing.T) {
	var log bytes.Buffer
	s, err := New(Options{Source: Source{DSN: "host=localhost"}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	now := time.Now()
	for _, c := range []struct {
		offset time.Duration
		lines  int
	}{
		{0, 0}, {900 * time.Millisecond, 0}, {1100 * time.Millisecond, 1}, {time.Hour, 1}, {0, 2}, {-2 * time.Second, 3},
	} {
		s.compareClocks(versionRow{serverTime: now.Add(c.offset), localTime: now})
		assert.Equal(t, c.lines, strings.Count(log.String(), "\n"), "at %v there are lines:\n%s", c.offset, log.String())
	}
}

func TestInvalidOptionsAreErrors(t *testing.T) {
	source := Source{DSN: "host=localhost"}
	for what, o := range map[string]Options{
		"no source":                 {},
		"a negative number of rows": {Source: source, MaxRows: -1},
		"a name that is too long":   {Source: source, Node: strings.Repeat("n", 257)},
	} {
		_, err := New(o)
		assert.Error(t, err, "%s: there is no error", what)
	}
}
