package spec

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/browser"
)

// serving starts a server of a handler, and returns its URL.
func serving(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

// behindCORS returns the URL of a node behind what Kong's cors plugin does to answers: it allows an origin, and sets
// the names of the headers that scripts may read if there are some (kong/plugins/cors/handler.lua, header_filter).
func behindCORS(t *testing.T, n *node, origin string, exposed ...string) string {
	t.Helper()
	to, err := url.Parse(n.URL())
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.ModifyResponse = func(r *http.Response) error {
		r.Header.Set("Access-Control-Allow-Origin", origin)
		if len(exposed) > 0 {
			r.Header.Set("Access-Control-Expose-Headers", strings.Join(exposed, ","))
		}
		return nil
	}
	return serving(t, proxy.ServeHTTP)
}

// readBy returns what a script of a tab reads of the answer to a GET: its status, then its rate limit headers in the
// order of their names.
func readBy(tab *browser.Tab, url string) []string {
	return browser.Eval[[]string](tab, fmt.Sprintf(`fetch(%q).then(r => [String(r.status)].concat(
		[...r.headers.keys()].filter(name => /ratelimit|retry-after/.test(name)).sort()))`, url))
}

// rateHeaders are the names of the headers of an answer about a limit, in the order of their names.
var rateHeaders = []string{
	"ratelimit", "ratelimit-policy", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset",
}

func TestAPageOfAnotherOriginReadsTheRateLimitHeadersThatAreExposed(t *testing.T) {
	t.Parallel()
	page := serving(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `<!doctype html><html lang="en"><title>An app</title><link rel="icon" href="data:,">`)
	})
	tab := browser.Start(t).Tab(t, browser.Desktop)
	tab.Open(page)
	recipe := exposedByRecipe(t)
	for name, c := range map[string]struct {
		option  string
		exposed []string
		reads   bool
	}{
		"nothing is exposed":           {"", nil, false},
		"expose_headers":               {"expose_headers: true,", nil, true},
		"cors as the docs have it":     {"", recipe, true},
		"cors replaces expose_headers": {"expose_headers: true,", []string{"X-Other"}, false},
	} {
		n := start(t, deck(`{`+c.option+` tiers: [{name: enterprise,
			limits: [{name: year, scope: tenant, limit: 1, window_size: 31536000, algorithm: fixed_window}]}]}`))
		target := behindCORS(t, n, page, c.exposed...) + "/records?apikey=alice" // a header would need a preflight
		admitted, denied := []string{"200"}, []string{"429"}
		if c.reads {
			admitted = append(admitted, rateHeaders...)
			denied = append(denied, slices.Sorted(slices.Values(append(rateHeaders, "retry-after")))...)
		}
		for _, want := range [][]string{admitted, denied} {
			if got := readBy(tab, target); !slices.Equal(got, want) {
				t.Errorf("%s: the script reads %q, want %q", name, got, want)
			}
		}
	}
}

// exposedByRecipe returns the exposed_headers of the cors plugin in docs/clients.md.
func exposedByRecipe(t *testing.T) []string {
	t.Helper()
	for _, s := range snippets(t, "docs/clients.md") {
		if !strings.Contains(s.text, "exposed_headers") {
			continue
		}
		var file struct {
			Plugins []struct {
				Config struct {
					Exposed []string `yaml:"exposed_headers"`
				} `yaml:"config"`
			} `yaml:"plugins"`
		}
		require.NoError(t, yaml.Unmarshal([]byte(s.text), &file))
		return file.Plugins[0].Config.Exposed
	}
	t.Fatal("docs/clients.md has no recipe for cors")
	return nil
}
