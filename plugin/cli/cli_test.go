package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/internal/process"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestEveryCallShowsItsResultAndExitsWithItsCode(t *testing.T) {
	const faulty = "plugins: [{name: " + schema.Name + ", config: {tiers: [{name: a, limits: " +
		"[{name: x, scope: tenant, limit: 0, window_size: 1}]}]}}]"
	const entries = "plugins: [{name: " + schema.Name + ", config: {tiers: [{name: a, limits: " +
		"[{name: x, scope: tenant, limit: 1, window_size: 1}]}], exempt: [%s]}}]"
	unmatchable := fmt.Sprintf(entries, `{tag: " monitoring"}, {endpoint: "GET /a%2Fb"}`)
	for _, c := range []struct {
		args []string
		in   string
		code int
		want string
	}{
		{nil, "", 2, "usage: ratelimit"},
		{[]string{"--help"}, "", 0, "usage: ratelimit"},
		{[]string{"help"}, "", 0, "usage: ratelimit"},
		{[]string{"frobnicate"}, "", 2, `ratelimit: unknown command "frobnicate"; see ratelimit -h`},
		{[]string{"version"}, "", 0, process.Version},
		{[]string{"--version"}, "", 0, process.Version + "\n"},
		{[]string{"validate"}, "", 2, "at least one decK file"},
		{[]string{"validate", "/does/not/exist.yml"}, "", 2, "no such file"},
		{[]string{"validate", "-"}, faulty, 1, "standard input:1: error: plugins[0].config.tiers[0].limits[0].limit"},
		{[]string{"validate", "-"}, faulty, 1, "-: 1 fault, 0 warnings\n"},
		{[]string{"validate", "-"}, unmatchable, 1, `exempt[0].tag: must not begin or end with a space, got " monitoring"`},
		{[]string{"validate", "-"}, unmatchable, 1, "exempt[1].endpoint: matches no request: a path with %, "},
		{[]string{"validate", "-"}, "plugins: []", 1, "nothing was checked"},
	} {
		var out bytes.Buffer
		if code := Ratelimit(c.args, strings.NewReader(c.in), &out, &out); code != c.code ||
			!strings.Contains(out.String(), c.want) {
			t.Errorf("%q: exit code %d, want %d; output\n%s\nwant %q", c.args, code, c.code, out.String(), c.want)
		}
	}
}
