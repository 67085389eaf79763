package cli

import (
	"strings"
	"testing"
)

func TestTheHelpHasNoWordsOfTheProgramsInside(t *testing.T) {
	for _, c := range commandsBelow(new(operator).newRoot()) {
		if strings.Contains(c.UsageString(), "stringArray") {
			t.Errorf("the help of %s has the word stringArray", c.CommandPath())
		}
	}
}

// nowhere is a database that does not exist: a wrong call is reported before the program connects.
const nowhere = "host=/nonexistent dbname=none"

func TestAWrongCallIsReportedBeforeAnythingIsDone(t *testing.T) {
	for _, c := range []struct{ call, want string }{
		{"override add --kind ban --tenant acme --expires-in 2h", "--reason"},
		{"override add --kind ban --tenant acme --expires-in 2h --reason ' '", "--reason"},
		{"override add --tenant acme --expires-in 2h --reason x", "--kind is required"},
		{"override add --kind ban --tenant acme --expires-in 2h --permanent --reason x", "--expires-in and --permanent"},
		{"override add --kind ban --tenant acme --reason x", "--expires-in or --expires-at"},
		{
			"override add --kind ban --tenant acme --expires-in soon --reason x",
			`--expires-in: "soon": must be a duration above 0`,
		},
		{"override add --kind ban --tenant acme --expires-in -2h --reason x", "must be a duration above 0"},
		{
			"override add --kind ban --tenant acme --expires-at tomorrow --reason x",
			"must be a time with its zone and a year up to 9999, such as 2026-01-31T12:00:00Z",
		},
		{
			"override add --kind multiplier --factor 0 --tenant acme --permanent --reason x",
			"must be a decimal number with at most three places",
		},
		{"override end seven --reason x", `"seven" is not an id: it must be a whole number above 0`},
		{"override end --reason x", "expected ID"},
		{"override list --ended --state in_force", "either"},
		{"policy put daily --tier gold --limit many --window 60 --reason x", `--limit: "many": must be a whole number`},
		{"policy put daily --tier gold --limit 1 --window 1500ms --reason x", "a duration of whole seconds"},
		{"policy put daily weekly --tier gold --reason x", `unexpected argument "weekly"`},
		{"policy put daily --teir gold --reason x", "unknown flag: --teir"},
		{"policy put daily -teir=gold --reason x", "unknown shorthand flag: 't' in -teir=gold"},
		{"top -once", `--output: "nce": must be`},
		{"polcy list", `unknown command "polcy" (did you mean policy?)`},
		{"policy lst --tier gold", `unknown command "lst" (did you mean list or`},
		{"completion tcsh", "must be bash, zsh or fish"},
		{"policy put daily --reason x --tier", "flag needs an argument: --tier"},
		{"policy put daily ---tier gold", "bad flag syntax: ---tier"},
		{"policy list -o yaml --max 1", "a complete document: remove --max"},
		{"policy list -o yaml --after 7", "a complete document: remove --after"},
		{"policy list -o xml", `: --output: "xml": must be table, json or yaml`},
		{"policy list -o", "flag needs an argument: 'o' in -o"},
		{"policy list -x", "unknown shorthand flag: 'x' in -x;"},
		{"override list --ended=perhaps", `--ended: "perhaps": must be true or false`},
		{"tenant set acme --reason x", "--tier or --time-zone"},
		{"tier put gold --reason x --wait=never", "must be a duration above 0"},
		{"tier put gold --reason x --revision -1", "must be a whole number above 0"},
		{"--database-file /does/not/exist policy list", "no such file"},
		{"-- polcy", `unknown command "polcy"`},
		{"audit --since yesterday", "or a duration ago"},
		{"audit --limit 0", "must be a whole number, at least 1"},
		{"apply --reason x", "--file is required"},
		{"apply -f /does/not/exist.yaml --reason x", "no such file"},
		{"explain --tenant acme", "--config"},
		{"explain --tenant acme --config /does/not/exist.yml", "no such file"},
		{"explain --endpoint /records", "must be METHOD /path"},
		{"explain --endpoint 'GET /records' --path /x", "either --endpoint, or --method and --path"},
		{"explain --path records", "must begin with /"},
		{"explain --ip 300.1.1.1", "must be an IP address"},
		{"explain --snapshot a --config-only", "either"},
		{"buckets show", "--tenant or --ip is required"},
		{"buckets show --ip 192.0.2.1 --user u_42", "require --tenant"},
		{"token create ci --role root --reason x", "--role: must be admin, viewer or tenant:{org}"},
		{"token create ci --role tenant: --reason x", "--role: must be admin, viewer or tenant:{org}"},
		{"token create ci --reason x", "--role: must be admin, viewer or tenant:{org}"},
		{"token create ci --role admin", "--reason"},
		{"token create ci --role admin --expires-in 2h --expires-at 2099-01-01T00:00:00Z --reason x", "either"},
		{"token list --state dead", "must be one of live, expired, revoked"},
		{"token revoke --reason x", "expected NAME"},
		{"migrate sideways", `unknown command "sideways"`},
		{"migrate", "Usage:\n  ratelimit migrate"},
		{"policy list --database a --database-file b", "either"},
		{"policy list --database-file /does/not/exist", "no such file"},
	} {
		x := &terminal{t: t, env: map[string]string{databaseVariable: nowhere}}
		if code := x.call(words(t, c.call)...); code != exitWrongCall || !strings.Contains(x.output.String(), c.want) {
			t.Errorf("%s: exit code %d, want 2; output\n%s\nwant %q", c.call, code, x.output.String(), c.want)
		}
		if lines := strings.Count(x.output.String(), "\n"); lines != 1 && !strings.HasPrefix(x.output.String(), "Usage:") {
			t.Errorf("%s: %d lines, want one", c.call, lines)
		}
	}
}

func TestWithoutADatabaseTheErrorNamesTheFlagAndTheVariable(t *testing.T) {
	x := &terminal{t: t}
	code := x.call("policy", "list")
	if text := x.output.String(); code != exitWrongCall || !strings.Contains(text, databaseVariable) ||
		!strings.Contains(text, "--database-file") {
		t.Errorf("exit code %d, output\n%s", code, text)
	}
}
