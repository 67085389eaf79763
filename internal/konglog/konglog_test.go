package konglog_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/konglog"
)

func TestEveryLineIsAnEntry(t *testing.T) {
	var log bytes.Buffer
	o := konglog.Options{Lines: 100, Tenants: 10, From: time.Unix(1_800_000_000, 0), PerSecond: 10}
	require.NoError(t, konglog.Write(&log, o))
	lines := bytes.Split(bytes.TrimSpace(log.Bytes()), []byte("\n"))
	if len(lines) != o.Lines {
		t.Errorf("%d lines, want %d", len(lines), o.Lines)
	}
	for i, line := range lines {
		var entry struct {
			Started  int64 `json:"started_at"`
			Consumer struct {
				CustomID string `json:"custom_id"`
			} `json:"consumer"`
		}
		if err := json.Unmarshal(line, &entry); err != nil || entry.Started == 0 || entry.Consumer.CustomID == "" {
			t.Fatalf("line %d: %v: %s", i+1, err, line)
		}
	}
}
