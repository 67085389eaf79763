package deck_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/deck"
)

const (
	settles = "{name: tenant-rate-limiting%s, config: {on_missing_tenant: skip, tiers: [{name: a, limits: [" +
		"{name: rate, scope: tenant, limit: 10, window_size: 1, settle: {sources: [{from: shared.n}]}}]}]}}"
	settling = "{name: tenant-rate-settling%s}"
)

func TestALimitThatSettlesNeedsTheSettlingPluginForTheSameRequests(t *testing.T) {
	limits := func(scope string) string { return fmt.Sprintf(settles, scope) }
	with := func(scope string) string { return fmt.Sprintf(settling, scope) }
	const add = `add "- name: tenant-rate-settling" to `
	for name, test := range map[string]struct{ file, want string }{
		"global, without": {"plugins: [" + limits("") + "]", add + "plugins"},
		"global":          {"plugins: [" + limits("") + ", " + with("") + "]", ""},
		"global, disabled": {
			"plugins: [" + limits("") + ", " + with(", enabled: false") + "]", add + "plugins",
		},
		"not enabled": {"plugins: [" + limits(", enabled: false") + "]", ""},
		"a service, without": {
			"services: [{name: s, plugins: [" + limits("") + "]}, {name: o, plugins: [" + with("") + "]}]",
			add + "services[0].plugins",
		},
		"a service": {
			"services: [{name: s, plugins: [" + limits("") + ", " + with("") + "]}]", "",
		},
		"a service, and all": {
			"services: [{name: s, plugins: [" + limits("") + "]}]\n" +
				"plugins: [" + with("") + "]", "",
		},
		"all, and a service": {
			"services: [{name: s, plugins: [" + with("") + "]}]\n" +
				"plugins: [" + limits("") + "]", add + "plugins",
		},
		"a route, and a service": {
			"services: [{name: s, plugins: [" + with("") + "], " +
				"routes: [{name: r, plugins: [" + limits("") + "]}]}]", "",
		},
		"a service, and a route": {
			"services: [{name: s, plugins: [" + limits("") + "], routes: [{name: r, plugins: [" + with("") + "]}]}]",
			add + "services[0].plugins",
		},
		"a route without a name": {
			"services: [{name: s, routes: [{paths: [/a], plugins: [" + limits("") + "]}, " +
				"{paths: [/b], plugins: [" + with("") + "]}]}]",
			add + "services[0].routes[0].plugins",
		},
		"a service by name": {
			"services: [{name: s}]\n" +
				"plugins: [" + limits(", service: s") + ", " + with(", service: {name: s}") + "]", "",
		},
		"a service by name, without": {
			"services: [{name: s}]\nplugins: [" + limits(", service: s") + ", " + with(", service: o") + "]",
			`add "- {name: tenant-rate-settling, service: s}" to plugins`,
		},
		"a route by name, and its service": {
			"services: [{name: s, routes: [{name: r}]}]\n" +
				"plugins: [" + limits(", route: r") + ", " + with(", service: s") + "]", "",
		},
		"a route of a service by name": {
			"services: [{name: s}]\n" +
				"routes: [{name: r, service: s, plugins: [" + limits("") + "]}]\nplugins: [" + with(", service: s") + "]",
			"",
		},
		"a consumer, and all": {
			"consumers: [{username: c, plugins: [" + limits("") + "]}]\n" +
				"plugins: [" + with("") + "]", "",
		},
		"all, and a consumer": {
			"consumers: [{username: c, plugins: [" + with("") + "]}]\n" +
				"plugins: [" + limits("") + "]", add + "plugins",
		},
	} {
		got := lines(deck.Validate(strings.NewReader(test.file), "kong.yml"))
		if test.want == "" && got != "" || !strings.HasSuffix(strings.TrimSpace(got), test.want) || strings.Count(got, "\n"+
			"") > 1 {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

func TestALimitOfConcurrencyNeedsTheSettlingPlugin(t *testing.T) {
	const limits = "{name: tenant-rate-limiting, config: {on_missing_tenant: skip, tiers: [{name: a, limits: [" +
		"{name: exports, scope: tenant, limit: 10, algorithm: concurrency, max_duration: 600}]}]}}"
	const want = "max_duration: needs the plugin tenant-rate-settling for the same requests, else each counts as in " +
		`flight for all of this time: add "- name: tenant-rate-settling" to plugins`
	got := lines(deck.Validate(strings.NewReader("plugins: ["+limits+"]"), "kong.yml"))
	if !strings.Contains(got, want) {
		t.Errorf("without it: got %q, want %q", got, want)
	}
	file := "plugins: [" + limits + ", " + fmt.Sprintf(settling, "") + "]"
	if got := lines(deck.Validate(strings.NewReader(file), "kong.yml")); got != "" {
		t.Errorf("with it: got %q", got)
	}
}

func TestLimitsThatDoNotSettleNeedNoSettlingPlugin(t *testing.T) {
	if got := lines(deck.Validate(strings.NewReader(oneConfig), "kong.yml")); got != "" {
		t.Errorf("got %s", got)
	}
}
