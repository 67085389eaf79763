package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
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
		{nil, "", 2, "Usage:\n  ratelimit"},
		{[]string{"--help"}, "", 0, "Usage:\n  ratelimit"},
		{[]string{"help"}, "", 0, "Usage:\n  ratelimit"},
		{[]string{"frobnicate"}, "", 2, `ratelimit: unknown command "frobnicate"; see ratelimit -h`},
		{[]string{"version"}, "", 0, process.Version},
		{[]string{"--version"}, "", 0, process.Version + "\n"},
		{[]string{"validate"}, "", 2, "expected FILE ..."},
		{[]string{"validate", "/does/not/exist.yml"}, "", 2, "no such file"},
		{[]string{"validate", "-"}, faulty, 1, "standard input:1: error: plugins[0].config.tiers[0].limits[0].limit"},
		{[]string{"validate", "-"}, faulty, 1, "-: 1 fault, 0 warnings\n"},
		{[]string{"validate", "-"}, unmatchable, 1, `exempt[0].tag: must not begin or end with a space, got " monitoring"`},
		{[]string{"validate", "-"}, unmatchable, 1, "exempt[1].endpoint: matches no request: a path with %, "},
		{[]string{"validate", "-"}, "plugins: []", 1, "nothing was checked"},
		{[]string{"validate", "-"}, "policies: []", 0, "-: 0 faults, 0 warnings\n"},
		{[]string{"validate", "-"}, "policies: [{name: daily, limit: 0}]", 1, "standard input:1: error: policies[0].limit: "},
		{[]string{"validate", "-"}, "costs: [{endpoint: GET /a, cost: x}]\n---\n", 1, "must hold a single YAML document"},
	} {
		var out bytes.Buffer
		if code := Ratelimit(c.args, strings.NewReader(c.in), &out, &out); code != c.code ||
			!strings.Contains(out.String(), c.want) {
			t.Errorf("%q: exit code %d, want %d; output\n%s\nwant %q", c.args, code, c.code, out.String(), c.want)
		}
	}
}

func TestWhatAFileAloneCanAnswerNeedsNoDatabase(t *testing.T) {
	t.Setenv(databaseVariable, "")
	const policies, faulty = "testdata/ratelimit/policies.yaml", "testdata/ratelimit/faulty.yaml"
	const explain = "explain --config ../../kong/kong.yml --tenant acme --tier enterprise"
	for _, c := range []struct {
		args       string
		code       int
		out, wrong string
	}{
		{"validate " + policies, 0, policies + ": 0 faults, 0 warnings\n", ""},
		{"validate " + faulty, 1, faulty + ":2: error: tenants[0].id: is required\n", ""},
		{"diff -f " + faulty, 2, "", faulty + ":8: overrides[3].reason: is required\n"},
		{"diff -f " + policies, 2, "", policies + ": no fault of its own; what apply would change depends on the database\n"},
		{explain, 0, "500 per 60 s", "no database is configured"},
		{explain + " --config-only", 0, "500 per 60 s", ""},
	} {
		var out, wrong bytes.Buffer
		code := Ratelimit(strings.Fields(c.args), strings.NewReader(""), &out, &wrong)
		if code != c.code || !strings.Contains(out.String(), c.out) || !strings.Contains(wrong.String(), c.wrong) ||
			c.wrong == "" && wrong.Len() > 0 {
			t.Errorf("%s: exit code %d, want %d\n%s\n%s", c.args, code, c.code, &out, &wrong)
		}
	}
}
