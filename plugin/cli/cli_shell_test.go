package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAShellGetsACompletionScriptAsItReadsIt(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		x := &terminal{t: t}
		if script := x.must("completion", shell); !strings.Contains(script, "__complete ") ||
			strings.ContainsRune(script, '\ufffd') {
			t.Errorf("%s: not a script:\n%.300s", shell, script)
		}
	}
}

func TestAShellCompletesCommandsFlagsAndFormats(t *testing.T) {
	for _, c := range []struct {
		typed []string
		want  string
	}{
		{[]string{"pol"}, "policy"},
		{[]string{"policy", "pu"}, "put\tcreate or replace a policy"},
		{[]string{"policy", "put", "daily", "--reas"}, "--reason\t"},
		{[]string{"policy", "list", "-o", ""}, "yaml"},
		{[]string{"policy", "list", "--output", "j"}, "json"},
		{[]string{"completion", ""}, "fish"},
	} {
		x := &terminal{t: t}
		if text := x.must(append([]string{"__complete"}, c.typed...)...); !strings.Contains(text, c.want) {
			t.Errorf("%q: completed to\n%s\nwant %q", c.typed, text, c.want)
		} else if strings.Contains(text, "`") {
			t.Errorf("%q: completed to\n%s\nwant no back quotes", c.typed, text)
		}
	}
}

func TestEveryCommandHasAManPage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	x := &terminal{t: t}
	x.must("man", dir)
	for _, c := range leaves(new(operator).newRoot()) {
		page, err := os.ReadFile(filepath.Join(dir, strings.ReplaceAll(c.CommandPath(), " ", "-")+".1"))
		if err != nil || !strings.Contains(unescaped(page), c.Short) {
			t.Errorf("%s: %v, want a page with %q", c.CommandPath(), err, c.Short)
		}
	}
	page, err := os.ReadFile(filepath.Join(dir, "ratelimit-policy-put.1"))
	if err != nil || !strings.Contains(unescaped(page), "--reason") {
		t.Errorf("the page of policy put lacks --reason (%v)", err)
	}
}

// unescaped returns the text of a man page with its dashes as they are shown.
func unescaped(page []byte) string { return strings.ReplaceAll(string(page), `\-`, "-") }
