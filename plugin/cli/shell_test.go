package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
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

func TestAShellCompletesEnumsAndNamesOfTheDatabase(t *testing.T) {
	dsn := pgtest.Shared(t).Database(t)
	x := &terminal{t: t, env: map[string]string{databaseVariable: dsn + "&connect_timeout=60"}}
	x.must("tier", "put", "gold", "--reason", "a test")
	x.must("tenant", "set", "acme", "--tier", "gold", "--reason", "a test")
	x.must("policy", "put", "daily", "--tenant", "northwind", "--limit", "5", "--window", "60", "--reason", "a test")
	x.must("tenant", "set", "northwind", "--tier", "gold", "--reason", "a test")
	for _, c := range []struct{ typed, want string }{
		{"override add --kind ", "custom_limit multiplier ban exempt topup"},
		{"override list --kind ", "custom_limit multiplier ban exempt topup"},
		{"policy put daily --scope ", "tenant user credential ip endpoint global tenant+endpoint user+endpoint"},
		{"override add --tenant ", "acme northwind"},
		{"usage show n", "northwind"},
		{"tenant get ", "acme northwind"},
		{"policy get ", "daily"},
		{"override add --policy d", "daily"},
		{"tenant set acme --tier ", "gold"},
		{"tier delete x", ""},
	} {
		for _, env := range []map[string]string{x.env, {}, {databaseVariable: "postgres://nobody@127.0.0.1:1/none"}} {
			y := &terminal{t: t, env: env}
			words, typed := strings.Fields(c.typed), ""
			if !strings.HasSuffix(c.typed, " ") {
				words, typed = words[:len(words)-1], words[len(words)-1]
			}
			y.call(append([]string{"__complete"}, append(words, typed)...)...)
			text, _, _ := strings.Cut(y.output.String(), ":4")
			want := c.want
			if isEnum := strings.Contains(c.typed, "--kind") || strings.Contains(c.typed, "--scope"); !isEnum &&
				env[databaseVariable] != x.env[databaseVariable] {
				want = "" // and no error
			}
			if got := strings.Join(strings.Fields(text), " "); got != want {
				t.Errorf("%s with %v: completed to %q, want %q", c.typed, env, got, want)
			}
		}
	}
}

func TestEveryCommandHasAManPage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	x := &terminal{t: t}
	x.must("man", dir)
	root := new(operator).newRoot()
	for _, c := range append(commandsBelow(root), root) {
		name := strings.ReplaceAll(c.CommandPath(), " ", "-")
		page, err := os.ReadFile(filepath.Join(dir, name+".1"))
		if err != nil || !strings.Contains(unescaped(page), "\n"+name+" - "+c.Short+"\n") {
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
