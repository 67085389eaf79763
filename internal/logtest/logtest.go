// Package logtest has a log that tests read while others write it.
package logtest

import (
	"bytes"
	"strings"
	"sync"
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
