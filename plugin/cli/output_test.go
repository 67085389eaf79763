package cli

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// hostile is a name that clears a terminal, colours it in two ways, turns the direction of writing, and tries to begin
// a line of its own.
const hostile = "evil\x1b[2J\u009b31m\u202e\nversion 9: enforced on 2 of 2\r\x00"

// plainly fails the test where the output has what a terminal would obey, or a line that a name has begun.
func plainly(t *testing.T, what, output string) {
	t.Helper()
	if !strings.Contains(output, "evil") {
		t.Errorf("%s: the name is not shown in %q", what, output)
	}
	for _, r := range output {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Errorf("%s: %q reaches the terminal in %q", what, r, output)
		}
	}
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "version 9") {
			t.Errorf("%s: a name begins the line %q", what, line)
		}
	}
}

func TestNoNameReachesTheTerminalAsAControlSequence(t *testing.T) {
	nodes := []rows.Node{{
		Node: hostile, Live: true,
		Faults: json.RawMessage(`[{"table":"policies","key":` + quoted(hostile) + `}]`),
	}}
	for what, show := range map[string]func(c *call) error{
		"the fleet": func(c *call) error { return c.showFleet(rows.Fleet{Version: 7, At: noon, Nodes: nodes}) },
		"a node that does not enforce": func(c *call) error {
			return c.print(written{}, func(out *page) {
				behind := []rows.NodeVersion{{Node: hostile}}
				(&enforcing{Reach: rows.Reach{Live: 1, Behind: behind}}).writeTo(out, "")
			})
		},
		"a write": func(c *call) error {
			done := written{What: "deleted tier " + hostile}
			return c.print(done, done.writeTo)
		},
		"the head of an explanation": func(c *call) error {
			e := explanation{
				Config:      "kong.yml",
				Explanation: resolve.Explanation{Tenant: hostile, Tier: hostile, Endpoint: hostile},
			}
			return c.print(e, e.writeTo)
		},
		"a denied identity": func(c *call) error {
			e := explanation{Denied: denialOf(&identity.Identity{TenantDenied: true}) + hostile}
			return c.print(e, e.writeTo)
		},
		"a table": func(c *call) error {
			return c.print([]rows.Tenant{{Tenant: schema.Tenant{ID: hostile}}}, nil)
		},
		"a warning":     func(c *call) error { c.warn("no tier %s", hostile); return nil },
		"a failed call": func(c *call) error { c.report(c.cobra, wrong("%s", hostile)); return nil },
		"text by mistake": func(c *call) error {
			_, err := io.WriteString(c.stdout, strings.ReplaceAll(hostile, "\n", ""))
			return err
		},
	} {
		var both strings.Builder
		o := &operator{stdout: screen{to: &both}, stderr: screen{to: &both}, now: func() time.Time { return noon }}
		if err := show(newCall(o, fleetCommand)); err != nil && !isExitStatus(err) {
			t.Errorf("%s: %v", what, err)
		}
		plainly(t, what, both.String())
	}
}

func TestJSONEscapesWhatATerminalWouldObeyAndReadsAsTheSame(t *testing.T) {
	var b strings.Builder
	c := newCall(&operator{stdout: screen{to: &b}}, fleetCommand)
	c.format = formatJSON
	require.NoError(t, c.print([]string{hostile}, nil))
	plainly(t, "JSON", b.String())
	var back []string
	if err := json.Unmarshal([]byte(b.String()), &back); err != nil || len(back) != 1 || back[0] != hostile {
		t.Errorf("%q reads as %q (%v), want %q", b.String(), back, err, hostile)
	}
}

func quoted(text string) string {
	quoted, _ := json.Marshal(text) // a string can always be encoded
	return string(quoted)
}

func isExitStatus(err error) bool {
	_, ok := err.(exitStatus)
	return ok
}
