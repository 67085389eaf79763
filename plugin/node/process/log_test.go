package process

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestALogWithoutAReaderDelaysNothing(t *testing.T) {
	reader, writer := io.Pipe() // a write waits until it is read
	w := NewLogWriter(writer)
	for range 3 * logQueue {
		if n, err := w.Write([]byte("line\n")); n != 5 || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
	}
	read := make(chan string)
	go func() {
		text, err := io.ReadAll(reader)
		assert.NoError(t, err)
		read <- string(text)
	}()
	w.Close()
	writer.Close()
	text := <-read
	if lines := strings.Count(text, "line\n"); lines < logQueue || lines > logQueue+2 {
		t.Errorf("%d lines were kept, want those of the queue (%d)", lines, logQueue)
	}
	assert.True(t, strings.Contains(text, "log lines were dropped"), "the dropped lines are not reported")
}

func TestCloseWritesTheQueuedLines(t *testing.T) {
	var out bytes.Buffer
	w := NewLogWriter(&out)
	for range 100 {
		w.Write([]byte("line\n"))
	}
	if w.Close(); out.String() != strings.Repeat("line\n", 100) {
		t.Errorf("%d bytes, want 500", out.Len())
	}
}
