package cli

import (
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const fine = "name: daily, scope: tenant, limit: 10, window_size: 60"

func TestAFaultOfADocumentIsReportedWithItsLineAndField(t *testing.T) {
	for _, c := range []struct{ what, text, want string }{
		{
			"an unknown field", "policies:\n- {" + fine + ", tier: gold}\n- {" + fine + ",\n   tier: a, burts: 5}",
			"p.yaml:4: policies[1].burts: unknown field",
		},
		{"an unknown field at the top", "polices: []", "p.yaml:1: polices: unknown field"},
		{"no policies", "namespace: eu", "p.yaml:1: policies: is required"},
		{"an empty file", "", "p.yaml: is empty"},
		{"not YAML", "policies: [", "p.yaml: is not YAML: line 1"},
		{"no mapping", "- a", "p.yaml:1: must be a mapping"},
		{"no list", "policies: {}", "p.yaml:1: policies: must be a list"},
		{"two documents", "policies: []\n---\npolicies: []", "p.yaml:2: must hold a single YAML document"},
		{"no policy", "policies:\n- daily", "p.yaml:2: policies[0]: must be a mapping"},
		{"a field twice", "policies:\n- {" + fine + ", tier: a, limit: 5}", "p.yaml:2: policies[0].limit: appears twice"},
		{"a list twice", "policies:\n- {" + fine + ", tier: a}\npolicies: []", "p.yaml:3: policies: appears twice"},
		{
			"a name that is no string", "policies:\n- {" + fine + ", tier: a, fair: {weights: {1: 2}}}",
			"p.yaml:2: policies[0].fair: names must be strings, which may need quotes, and numbers finite",
		},
		{
			"a name twice within a field", "policies:\n- {" + fine + ", tier: a, fair: {weights: {a: 1, a: 2}}}",
			"p.yaml:2: policies[0].fair: line 2: mapping key \"a\" already defined at line 2",
		},
		{
			"a text for a number", "policies:\n- {name: daily, tier: a, scope: tenant, limit: many, window_size: 60}",
			`p.yaml:2: policies[0].limit: must be an integer, got "many"`,
		},
		{
			"a fraction", "policies:\n- {name: daily, tier: a, scope: tenant, limit: 1.5, window_size: 60}",
			"policies[0].limit: must be an integer, got 1.5",
		},
		{
			"a number for a text", "policies:\n- {name: 7, tier: a, scope: tenant, limit: 1, window_size: 60}",
			"policies[0].name: must be a string, got 7",
		},
		{"a burst of 0", "policies:\n- {" + fine + ", tier: a, burst: 0}", "policies[0].burst: must be > 0, got 0"},
		{"no tier", "policies:\n- {" + fine + "}", "p.yaml:2: policies[0].tier: is required unless tenant"},
		{
			"tier and tenant", "policies:\n- {" + fine + ", tier: a, tenant: b}",
			"policies[0].tenant: must be left out beside tier",
		},
		{
			"no limit", "policies:\n- name: daily\n  tier: a\n  scope: tenant\n  window_size: 60",
			"p.yaml:2: policies[0].limit: ",
		},
		{
			"an unknown scope", "policies:\n- name: daily\n  tier: a\n  scope: planet\n  limit: 5\n  window_size: 60",
			"p.yaml:4: policies[0].scope: ",
		},
		{
			"a typing mistake in the accuracy", "policies:\n- {" + fine + ", tier: a,\n   accuracy: excat}",
			"p.yaml:3: policies[0].accuracy: must be one of leased, exact",
		},
		{
			"arithmetic that is not exact",
			"policies:\n- {name: a, tier: a, scope: tenant, limit: 999999999999, window_size: 31622400}", "policies[0].",
		},
		{
			"patterns that are ambiguous",
			"policies:\n- {" + fine + ", tier: a, endpoint: \"GET /a/{x}/c\"}\n" +
				"- {" + fine + ", tier: b, endpoint: \"GET /{y}/b/c\"}",
			"policies[1].endpoint: ",
		},
		{
			"patterns of overrides that are ambiguous",
			"overrides:\n- {kind: exempt, endpoint: \"GET /a/{x}/c\", permanent: true, reason: r}\n" +
				"- {kind: exempt, endpoint: \"GET /{y}/b/c\", permanent: true, reason: r}",
			"p.yaml:3: overrides[1].endpoint: ",
		},
		{"a name that loops", "policies: &p\n- *p", "p.yaml:"},
	} {
		d := document{whole: strings.HasPrefix(c.text, "overrides")}
		err := d.read(strings.NewReader(c.text), "p.yaml")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
	}
}

func TestAFaultThatCannotBeReadHidesNoOther(t *testing.T) {
	const text = `policies:
- {name: a, tier: a, scope: tenant, limit: many, window_size: 60, burts: 5}
- {name: b, scope: planet, limit: 1, window_size: 60}
costs:
- {endpoint: "POST /a", cost: some}
- {endpoint: nowhere, cost: 5}
overrides:
- {kind: multiplier, tenant: acme, factor: much, reason: r}
- {kind: ban, permanent: true}
`
	d := document{whole: true}
	var got []string
	for _, err := range unjoined(d.read(strings.NewReader(text), "p.yaml")) {
		place, _, _ := strings.Cut(err.Error(), ": ")
		path, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), place+": "), ": ")
		got = append(got, strings.TrimPrefix(place, "p.yaml:")+" "+path)
	}
	want := []string{
		"2 policies[0].burts", "2 policies[0].limit", "3 policies[1].tier", "3 policies[1].scope",
		"5 costs[0].cost", "6 costs[1].endpoint",
		"8 overrides[0].factor", "8 overrides[0].expires_at", "9 overrides[1].tenant", "9 overrides[1].reason",
	}
	if !slices.Equal(got, want) {
		t.Errorf("faults of\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestADocumentMayRepeatAPolicyByAnAlias(t *testing.T) {
	const text = "namespace: eu\npolicies:\n- &daily {" + fine + ", tier: gold, cost: 0}\n- *daily"
	var d document
	require.NoError(t, d.read(strings.NewReader(text), "p.yaml"))
	list := d.set.Policies
	if d.set.Namespace != "eu" || len(list) != 2 || list[0].Cost == nil || *list[0].Cost != 0 ||
		!reflect.DeepEqual(list[0], list[1]) {
		t.Errorf("namespace %s, policies %+v", d.set.Namespace, list)
	}
}

func TestAFaultOfABodyIsLocatedInTheDocument(t *testing.T) {
	var d document
	const text = "policies:\n- {" + fine + ", tier: a}\n- {" + fine + ",\n   tenant: b}"
	require.NoError(t, d.read(strings.NewReader(text), "p.yaml"))
	for want, fault := range map[string]answers.Fault{
		"p.yaml:4: policies[1].tenant: too long": {Location: "body.policies[1].tenant", Message: "too long"},
		"p.yaml:3: policies[1].burst: odd":       {Location: "body.policies[1].burst", Message: "odd"},
		"p.yaml:3: policies[1]: appears twice":   {Location: "body.policies[1]", Message: "appears twice"},
		"p.yaml: policy other: name: odd":        {Location: "body", Message: "policy other: name: odd"},
	} {
		problem := &answers.Problem{Status: http.StatusUnprocessableEntity, Errors: []answers.Fault{fault}}
		if got := d.locateProblem(problem); got.Error() != want {
			t.Errorf("%v, want %s", got, want)
		}
	}
}

func TestAFaultyPolicyHasTheSameFaultInAFileAsInTheConfig(t *testing.T) {
	for _, c := range policytest.Faulty(t, "../../schema/testdata/faulty_policies.json") {
		var d document
		err := d.read(strings.NewReader("policies: ["+c.JSON(t)+"]"), "p.yaml")
		if want := "p.yaml:1: policies[0]." + c.Field + ": " + c.Message; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a file with %s: %v, want %s", c.JSON(t), err, want)
		}
	}
}

func TestAFileOfPoliciesKeepsEveryFieldOfAPolicy(t *testing.T) {
	var list []rows.Policy
	want := policytest.Full(t)
	for i, p := range want {
		list = append(list, rows.Policy{Policy: p})
		want[i].Namespace = "" // it is a field of the file
	}
	var d document
	require.NoError(t, d.read(strings.NewReader(policySection.text(list)), "p.yaml"))
	for i, p := range d.set.Policies {
		if !reflect.DeepEqual(p.Policy, want[i]) {
			t.Errorf("%+v, want %+v", p.Policy, want[i])
		}
	}
}
