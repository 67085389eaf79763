package cli

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestALogThatBreaksOffExitsWithTheLineToResumeAt(t *testing.T) {
	whole, err := os.ReadFile("testdata/ratelimit/replay/access.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	if _, err := w.Write(whole); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for name, length := range map[string]int{"within the header": 5, "at the end": zipped.Len() - 9} {
		file := filepath.Join(t.TempDir(), "access.jsonl.gz")
		if err := os.WriteFile(file, zipped.Bytes()[:length], 0o600); err != nil {
			t.Fatal(err)
		}
		x := terminal{t: t}
		code := x.call("replay", "--config", "testdata/ratelimit/kong.yml", "--log", file)
		if out := x.output.String(); code != exitIncomplete || !strings.Contains(out, "or with --from-line ") {
			t.Errorf("%s: exit code %d\n%s", name, code, out)
		}
	}
}
