package server

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRecentDenialsAreReportedWhereThereIsADatabaseUnlessTheyAreOff(t *testing.T) {
	for args, want := range map[string]bool{
		"":                               false,
		"-database x":                    true,
		"-database x -denial-recent off": false,
	} {
		s, err := parseSettings(strings.Fields(args), func(string) string { return "" }, nil)
		require.NoError(t, err)
		d, err := newDenials(&s, "n1", nil, slog.New(slog.DiscardHandler))
		if got := d != nil && len(d.Metrics().Sinks) > 0; err != nil || got != want {
			t.Errorf("%q: they are reported: %v (%v), want %v", args, got, err, want)
		}
	}
}
