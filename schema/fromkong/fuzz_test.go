package fromkong_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/fromkong"
)

// FuzzConvert converts any text: it never panics, a file of which nothing is converted stays as it is, and a second
// conversion finds nothing more to convert.
func FuzzConvert(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yml")
	if err != nil || len(files) == 0 {
		f.Fatalf("found %v (%v)", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(f, err)
		f.Add(text, true)
		f.Add(bytes.ReplaceAll(text, []byte("\n"), []byte("\r\n")), false)
	}
	f.Add([]byte("plugins: &p\n- name: rate-limiting\n  config: *p\n"), false)
	f.Add([]byte("plugins:\n- - name: rate-limiting\n- name: rate-limiting\n"), false)
	f.Add([]byte("plugins:\n- &a\n  name: rate-limiting\n  config: {minute: 1}\n- *a\n"), true)
	f.Add([]byte("a: *b\n"), false)
	f.Add([]byte("--- x\n--- {plugins: [{name: rate-limiting, config: {minute: 1}}]}\n...\n"), false)
	f.Fuzz(func(t *testing.T, text []byte, sideBySide bool) {
		o := fromkong.Options{SideBySide: sideBySide, Redis: "redis:6379", Checks: []schema.Check{compiles}}
		result, err := fromkong.Convert(text, o)
		if err != nil {
			return
		}
		if result.Converted() == 0 && !bytes.Equal(result.Text, text) {
			t.Fatalf("nothing is converted, but the text changed to\n%s", result.Text)
		}
		again, err := fromkong.Convert(result.Text, o)
		if err != nil {
			t.Fatalf("the result cannot be read: %v\n%s", err, result.Text)
		}
		if again.Converted() > 0 && !sideBySide {
			t.Fatalf("the result has more to convert:\n%s", result.Text)
		}
	})
}
