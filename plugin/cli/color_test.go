package cli

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestStatesThatMatterAreColoredOnATerminalAlone(t *testing.T) {
	policies := []rows.Policy{
		{ID: 1, Policy: schema.Policy{Tier: "gold", Limit: schema.Limit{Name: "daily", Mode: "enforce"}}},
		{ID: 2, Policy: schema.Policy{Tier: "gold", Limit: schema.Limit{Name: "burst", Mode: "shadow"}}},
	}
	overrides := []rows.Override{
		{ID: 1, Override: schema.Override{Kind: "ban", Tenant: "acme"}},
		{ID: 2, Override: schema.Override{Kind: "exempt", Tenant: "acme"}},
	}
	write := func(color bool) string {
		var b bytes.Buffer
		out := new(page)
		out.show(policies)
		out.show(overrides)
		out.marked(redMark, "banned permanently")
		require.NoError(t, out.write(screen{to: &b, color: color}))
		return b.String()
	}
	plain, bright := write(false), write(true)
	if strings.Contains(plain, "\x1b") {
		t.Errorf("without a terminal there are control sequences in\n%q", plain)
	}
	for _, want := range []string{"\x1b[33mshadow\x1b[0m", "\x1b[31mban\x1b[0m ", "\x1b[31mbanned permanently\x1b[0m\n"} {
		if !strings.Contains(bright, want) {
			t.Errorf("%q is not in\n%q", want, bright)
		}
	}
	if n := strings.Count(bright, "\x1b[0m"); n != 3 {
		t.Errorf("%d texts are colored, want 3:\n%q", n, bright)
	}
	if got := strings.NewReplacer("\x1b[31m", "", "\x1b[33m", "", "\x1b[0m", "").Replace(bright); got != plain {
		t.Errorf("without its colors the text is\n%s\nwant\n%s", got, plain)
	}
}

func TestTheReachOfAChangeIsColoredUntilAllNodesEnforceIt(t *testing.T) {
	edge := []rows.NodeVersion{{Node: "edge-1", Version: 2}}
	for name, c := range map[string]struct {
		reach rows.Reach
		want  string
	}{
		"enforced everywhere": {rows.Reach{Live: 2, Enforced: true}, "\nenforced on 2 of 2 live nodes\n"},
		"a node behind":       {rows.Reach{Live: 2, Behind: edge}, "\n\x1b[33menforced on 1 of 2 live nodes; not yet"},
		"a silent node":       {rows.Reach{Live: 2, Silent: edge}, "\n\x1b[31menforced on 2 of 3 nodes; silent nodes"},
		"no live node":        {rows.Reach{}, "\n\x1b[31mno live nodes: not enforced anywhere yet\x1b[0m\n"},
	} {
		var b bytes.Buffer
		done := written{What: "deleted tier gold", Version: 7, Fleet: &enforcing{Reach: c.reach}}
		out := new(page)
		done.writeTo(out)
		require.NoError(t, out.write(screen{to: &b, color: true}))
		if !strings.Contains(b.String(), c.want) {
			t.Errorf("%s: %q is not in\n%q", name, c.want, b.String())
		}
	}
}

func TestANameCannotColorItsCell(t *testing.T) {
	var b bytes.Buffer
	out := new(page)
	out.show([]map[string]string{{"name": string(redMark) + "evil" + string(endMark)}, {"name": "\x1b[31mevil"}})
	require.NoError(t, out.write(screen{to: &b, color: true}))
	if strings.Contains(b.String(), "\x1b") {
		t.Errorf("a name is colored: %q", b.String())
	}
}

func TestColorsNeedATerminalThatShowsThem(t *testing.T) {
	for _, c := range []struct {
		noColor, terminal string
		want              bool
	}{{"", "xterm", true}, {"1", "xterm", false}, {"", "dumb", false}, {"", "", false}} {
		if got := allowsColor(c.noColor, c.terminal); got != c.want {
			t.Errorf("NO_COLOR=%q TERM=%q: colors %v, want %v", c.noColor, c.terminal, got, c.want)
		}
	}
	file, err := os.Create(t.TempDir() + "/out")
	require.NoError(t, err)
	defer file.Close()
	xterm := func(string) string { return "xterm" }
	if wantsColor(file, xterm) || wantsColor(new(bytes.Buffer), xterm) {
		t.Error("a file is colored")
	}
}
