package cli

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// tenantsUpTo yields n tenants, reports the count after each, and ends with an error unless that is nil.
func tenantsUpTo(n int, end error, yielded func(int)) iter.Seq2[rows.Tenant, error] {
	return func(yield func(rows.Tenant, error) bool) {
		for i := range n {
			if !yield(rows.Tenant{Tenant: schema.Tenant{ID: fmt.Sprintf("t%d", i)}}, nil) {
				return
			}
			yielded(i + 1)
		}
		if end != nil {
			yield(rows.Tenant{}, end)
		}
	}
}

func TestALongListIsWrittenWhileItIsRead(t *testing.T) {
	for _, format := range []string{formatTable, formatJSON, formatYAML} {
		var b strings.Builder
		c := newCall(&operator{stdout: screen{to: &b}}, fleetCommand)
		c.format = format
		const rows = 5 * listPart
		err := showRows(c, tenantsUpTo(rows, nil, func(n int) {
			if unwritten := n - strings.Count(b.String(), "t"); unwritten > listPart+1 {
				t.Fatalf("%s: %d rows are held back after %d", format, unwritten, n)
			}
		}))
		if err != nil || !strings.Contains(b.String(), fmt.Sprintf("t%d", rows-1)) {
			t.Errorf("%s: %v, and the last row is not shown", format, err)
		}
	}
}

// countedWrites counts what is written to it.
type countedWrites struct{ writes, bytes int }

func (w *countedWrites) Write(text []byte) (int, error) {
	w.writes++
	w.bytes += len(text)
	return len(text), nil
}

func TestALongListIsWrittenInLargeParts(t *testing.T) {
	for _, format := range []string{formatJSON, formatCSV} {
		var w countedWrites
		list := tenantsUpTo(20_000, nil, func(int) {})
		err := showJSON(&w, list)
		if format == formatCSV {
			w = countedWrites{}
			err = showCSV(&w, list, "id", "tier")
		}
		if err != nil || w.bytes < 10*partSize || w.writes > w.bytes/partSize+1 {
			t.Errorf("%s: %d bytes in %d writes (%v)", format, w.bytes, w.writes, err)
		}
	}
}

func TestAListThatBreaksOffIsAnError(t *testing.T) {
	broken := errors.New("the connection is gone")
	for _, format := range []string{formatTable, formatJSON, formatYAML} {
		c := newCall(&operator{stdout: screen{to: new(strings.Builder)}}, fleetCommand)
		c.format = format
		if err := showRows(c, tenantsUpTo(3, broken, func(int) {})); !errors.Is(err, broken) {
			t.Errorf("%s: the error is %v, want %v", format, err, broken)
		}
	}
}

func TestListedPoliciesAreADocumentThatChangesNothing(t *testing.T) {
	x := &terminal{t: t, env: map[string]string{databaseVariable: pgtest.Shared(t).Database(t)}}
	x.must("policy", "put", "daily", "--tier", "gold", "--limit", "1000", "--window", "24h",
		"--algorithm", "fixed_window", "--reason", "r")
	x.must("policy", "put", "daily", "--tenant", "yes", "--limit", "5", "--window", "60", "--cost", "0",
		"--endpoint", "POST /a/{id}", "--reason", "r")
	x.must("policy", "put", "burst", "--tenant", "12", "--limit", "5", "--window", "60", "--burst", "9",
		"--mode", "shadow", "--reason", "r")
	x.must("policy", "put", "burst", "--tenant", "tab\u202eevil", "--limit", "5", "--window", "60",
		"--soft-only", "--soft-threshold-pct", "80", "--reason", "r")

	x.stdin = x.must("policy", "list", "-o", "yaml")
	if got := x.must("diff", "-f", "-"); !strings.HasSuffix(got, "0 to create, 0 to change, 0 to delete, 4 unchanged\n") {
		t.Errorf("the document\n%s\ndiffers from the policies:\n%s", x.stdin, got)
	}
	x.stdin = x.must("policy", "list", "--tier", "gold", "-o", "yaml")
	for _, command := range [][]string{{"diff", "-f", "-"}, {"apply", "-f", "-", "--yes", "--reason", "r"}} {
		x.output.Reset()
		if code := x.call(command...); code != exitWrongCall || !strings.Contains(x.output.String(), "use --partial") {
			t.Errorf("%q of the document\n%s\nwithout --partial: exit code %d, want 2, with\n%s",
				command, x.stdin, code, &x.output)
		}
	}
	if got := x.must("diff", "-f", "-", "--partial"); !strings.HasSuffix(got, "0 to delete, 1 unchanged\n") {
		t.Errorf("the document\n%s\ndiffers from the policies with --partial:\n%s", x.stdin, got)
	}
	x.must("policy", "put", "daily", "--tier", "gold", "--limit", "1", "--window", "60", "--namespace", "eu",
		"--reason", "r")
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "]\nratelimit policy list: the document covers namespace default only; use --namespace for the others: eu\n"},
		{[]string{"--tenant", "12"}, "]\n"}, // of which eu has none
		{[]string{"--namespace", "default"}, "]\n"},
	} {
		if got := x.must(append([]string{"policy", "list", "-o", "yaml"}, c.args...)...); !strings.HasSuffix(got, c.want) {
			t.Errorf("%q shows\n%s\nwant at its end %q", c.args, got, c.want)
		}
	}
	x.stdin = x.must("policy", "list", "--namespace", "other", "-o", "yaml")
	if x.stdin != "namespace: other\npolicies: []\n" {
		t.Errorf("a namespace without policies is shown as %q", x.stdin)
	}
}

func TestADocumentThatIsCutShortIsNoDocument(t *testing.T) {
	policies := []rows.Policy{
		{ID: 1, Policy: schema.Policy{
			Tier: "gold",
			Limit: schema.Limit{
				Name: "daily", Scope: "tenant", Limit: 10, WindowSize: 60, Cost: new(int64),
				Endpoint: "POST /a/{id}",
			},
		}},
		{ID: 2, Policy: schema.Policy{
			Tenant: "tab\u202eevil",
			Limit:  schema.Limit{Name: "burst", Scope: "tenant", Limit: 5, WindowSize: 60},
		}},
		{ID: 3, Policy: schema.Policy{
			Tier: "gold", PublicNote: "it's: a #note, [sic",
			Limit: schema.Limit{Name: "hourly", Scope: "user", Limit: 5, WindowSize: 3600},
		}},
	}
	for n := range len(policies) + 1 {
		var b strings.Builder
		c := newCall(&operator{stdout: screen{to: &b}}, fleetCommand)
		require.NoError(t, c.showDocument("default", partialMark, policySection.text(policies[:n])))
		whole := b.String()
		if got := new(document); got.read(strings.NewReader(whole), "p.yaml") != nil || len(got.set.Policies) != n {
			t.Fatalf("the document has %d policies, want %d:\n%s", len(got.set.Policies), n, whole)
		}
		for cut := range len(whole) - 1 { // the last byte is the end of the last line
			if new(document).read(strings.NewReader(whole[:cut]), "p.yaml") == nil {
				t.Errorf("cut after byte %d it is a document:\n%s", cut, whole[:cut])
			}
		}
	}
}

// must runs the program, which must succeed, and returns its output.
func (x *terminal) must(args ...string) string {
	x.t.Helper()
	x.output.Reset()
	if code := x.call(args...); code != 0 {
		x.t.Fatalf("ratelimit %s: exit code %d\n%s", strings.Join(args, " "), code, x.output.String())
	}
	return x.output.String()
}

func TestATableShowsTheBlanksOfValuesAndKeepsItsColumnsAligned(t *testing.T) {
	var (
		page page
		rows []map[string]string
	)
	for _, name := range []string{"one", "two  blanks", " at the ends ", "tab\t\tand\nbreak", "\x1b[2Jescape"} {
		rows = append(rows, map[string]string{"a_name": name, "key": "x"})
	}
	page.show(rows)
	want := []string{
		"A NAME         KEY",
		"one            x",
		"two  blanks    x",
		" at the ends   x",
		"tab and break  x",
		"\uFFFD[2Jescape     x",
	}
	if got := strings.Split(strings.TrimSuffix(page.text.String(), "\n"), "\n"); !slices.Equal(got, want) {
		t.Errorf("the table is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
