package router

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway/internal/deck"
)

func mustRoute(t *testing.T, routes ...*deck.Route) *Router {
	t.Helper()
	r, err := New(routes)
	require.NoError(t, err)
	return r
}

func TestMoreSpecificRoutesWin(t *testing.T) {
	r := mustRoute(t,
		&deck.Route{Name: "root", Paths: []string{"/"}},
		&deck.Route{Name: "short", Paths: []string{"/a"}},
		&deck.Route{Name: "long", Paths: []string{"/other", "/a/b"}},
		&deck.Route{Name: "regex", Paths: []string{`~/a/r\d+$`}},
		&deck.Route{Name: "later-regex", Paths: []string{`~/a/r1`}},
		&deck.Route{Name: "post", Paths: []string{"/a"}, Methods: []string{"POST"}},
		&deck.Route{Name: "host", Hosts: []string{"h.test"}},
		&deck.Route{Name: "host-path", Hosts: []string{"h.test"}, Paths: []string{"/a"}},
		&deck.Route{Name: "port", Hosts: []string{"p.test:81"}, Paths: []string{"/a"}},
	)
	for _, c := range []struct {
		method, host, path, want string
	}{
		{"GET", "x", "/", "root"},
		{"GET", "x", "/zzz", "root"},
		{"GET", "x", "/a", "short"},
		{"GET", "x", "/ab", "short"},
		{"GET", "x", "/a/b/c", "long"},
		{"GET", "x", "/other/x", "long"},
		{"GET", "x", "/a/r12", "regex"},
		{"GET", "x", "/a/r2x", "short"},
		{"GET", "x", "/a/r1x", "later-regex"},
		{"POST", "x", "/a/b", "post"},
		{"GET", "h.test", "/zzz", "host"},
		{"GET", "H.test:8000", "/a", "host-path"},
		{"GET", "p.test:81", "/a", "port"},
		{"GET", "p.test", "/a", "short"},
	} {
		m := r.Match(Request{Method: c.method, Host: c.host, Path: c.path})
		if m == nil || m.Route.Name != c.want {
			t.Errorf("%+v: got %+v", c, m)
		}
	}
}

func TestNoRouteMatchesWhatNoneNames(t *testing.T) {
	r := mustRoute(t, &deck.Route{Paths: []string{"/a"}, Methods: []string{"GET"}})
	for _, request := range []Request{{Method: "POST", Path: "/a"}, {Method: "GET", Path: "/b"}} {
		if m := r.Match(request); m != nil {
			t.Errorf("%+v matched", request)
		}
	}
}

func TestTheMatchOfARegexIsStripped(t *testing.T) {
	r := mustRoute(t, &deck.Route{Paths: []string{`~/u/(?<id>\d+)/(\w+)`}, StripPath: true})
	if m := r.Match(Request{Path: "/u/42/x/rest"}); m == nil || m.Prefix != "/u/42/x" || m.UpstreamPath != "/rest" {
		t.Errorf("match %+v", m)
	}
}

func TestAnExpressionThatGoCannotCompileIsAnError(t *testing.T) {
	if _, err := New([]*deck.Route{{Paths: []string{`~/(?=x)`}}}); err == nil {
		t.Error("a path with look-ahead compiled")
	}
}

// The rows are those of the table in Kong's documentation of path handling v0.
func TestUpstreamPathJoinsServiceAndRequest(t *testing.T) {
	for _, c := range []struct {
		base, route, path string
		strip             bool
		want              string
	}{
		{"", "/a", "/a", true, "/"},
		{"", "/a", "/a/x", true, "/x"},
		{"", "/a", "/ax", true, "/x"},
		{"", "/a", "/a./x", true, "/x"},
		{"", "/a", "/a..", true, "/"},
		{"", "/a", "/a/x", false, "/a/x"},
		{"/s", "/a", "/a", true, "/s"},
		{"/s", "/a/", "/a/", true, "/s/"},
		{"/s", "/a", "/a/x", true, "/s/x"},
		{"/s", "/a", "/ax", true, "/s/x"},
		{"/s", "/", "/", false, "/s"},
		{"/s", "/a", "/a", false, "/s/a"},
		{"/s/", "/a", "/a", true, "/s"},
		{"/s/", "/a/", "/a/", true, "/s/"},
		{"/s/", "/a", "/a/x", true, "/s/x"},
		{"/s/", "/a", "/ax", true, "/s/x"},
		{"/s/", "/a", "/a/x", false, "/s/a/x"},
	} {
		r := mustRoute(t, &deck.Route{Paths: []string{c.route}, StripPath: c.strip, Service: &deck.Service{Path: c.base}})
		if m := r.Match(Request{Path: c.path}); m == nil || m.UpstreamPath != c.want {
			t.Errorf("%+v: got %+v", c, m)
		}
	}
}
