package pgtext

import "testing"

func TestStorableReplacesWhatPostgresCannotStore(t *testing.T) {
	for text, want := range map[string]string{
		"":             "",
		"acme é":       "acme é",
		"a\x00b":       "a\uFFFDb",
		"a\xff\xfeb":   "a\uFFFDb", // one for each run of bytes
		"\xc3\x00\xc3": "\uFFFD\uFFFD\uFFFD",
	} {
		if got := Storable(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}
