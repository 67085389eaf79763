// Package logtest has a log that tests read while others write it.
package logtest

import (
	"bytes"
	"strings"
	"sync"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
)

// Text is what was written. The zero value is empty.
type Text struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *Text) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns all that was written.
func (l *Text) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Count returns how often a part was written.
func (l *Text) Count(part string) int { return strings.Count(l.String(), part) }

// Await returns the first line with a part, as soon as there is one.
func (l *Text) Await(t testing.TB, part string) (found string) {
	t.Helper()
	await.That(t, "a log line with "+part, func() bool {
		for line := range strings.Lines(l.String()) {
			if strings.Contains(line, part) {
				found = line
				return true
			}
		}
		return false
	})
	return found
}
