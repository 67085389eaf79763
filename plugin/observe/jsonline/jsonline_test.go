package jsonline_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/jsonline"
)

func TestAnEscapedLineIsEqualJSONWithPrintableCharactersOnly(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"acme", "Zoë 株式会社 😀", "a\u202eb", "\u0085\u009b2J", "\x7f", "\x1b[2J\n\t", "\U000e0041x", "\ufeff", "\u2028",
	} {
		line, err := json.Marshal(map[string]string{text: text})
		require.NoError(t, err)
		safe := jsonline.Escape(line)
		if i := bytes.IndexFunc(safe, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
			t.Errorf("%q: %q has a character that is not printable at %d", text, safe, i)
		}
		var got map[string]string
		if err := json.Unmarshal(safe, &got); err != nil || got[text] != text {
			t.Errorf("%q is decoded as %q (%v)", safe, got, err)
		}
	}
}

func TestALogHasNoCharactersThatControlATerminal(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	log := slog.New(slog.NewJSONHandler(jsonline.Writer(&out), nil))
	log.With("tenant\u202e", "acme\u202e").Warn("\u202emoc", "error", struct{ Name string }{"\u009b"})
	isUnsafe := func(r rune) bool { return !unicode.IsPrint(r) }
	if text := out.String(); strings.ContainsFunc(strings.TrimSuffix(text, "\n"), isUnsafe) {
		t.Errorf("the log has %q", text)
	}
}
