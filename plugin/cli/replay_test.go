package cli

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestALogThatBreaksOffExitsWithTheLineToResumeAt(t *testing.T) {
	whole, err := os.ReadFile("testdata/ratelimit/replay/access.jsonl")
	require.NoError(t, err)
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	if _, err := w.Write(whole); err != nil {
		t.Fatal(err)
	}
	require.NoError(t, w.Close())
	for name, length := range map[string]int{"within the header": 5, "at the end": zipped.Len() - 9} {
		file := filepath.Join(t.TempDir(), "access.jsonl.gz")
		require.NoError(t, os.WriteFile(file, zipped.Bytes()[:length], 0o600))
		x := terminal{t: t}
		code := x.call("replay", "--config", "testdata/ratelimit/kong.yml", "--log", file)
		if out := x.output.String(); code != exitIncomplete || !strings.Contains(out, "or with --from-line ") {
			t.Errorf("%s: exit code %d\n%s", name, code, out)
		}
	}
}
