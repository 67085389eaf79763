package gateway

import "testing"

func TestMoreSpecificRoutesWin(t *testing.T) {
	router := newRouter([]*Route{
		{Name: "any", Methods: []string{"GET"}},
		{Name: "root", Paths: []string{"/"}},
		{Name: "short", Paths: []string{"/a"}},
		{Name: "long", Paths: []string{"/other", "/a/b"}},
		{Name: "later", Paths: []string{"/a/b"}},
		{Name: "post", Paths: []string{"/a"}, Methods: []string{"POST", "PUT"}},
		{Name: "host", Hosts: []string{"h.test"}},
	})
	for request, want := range map[[3]string]string{
		{"x", "GET", "/"}: "root", {"x", "GET", "/zzz"}: "root", {"x", "GET", "/a"}: "short", {"x", "GET", "/ab"}: "short",
		{"x", "GET", "/a/b/c"}: "long", {"x", "GET", "/other/x"}: "long", {"x", "PUT", "/a/b"}: "post",
		{"h.test", "GET", "/a/b"}: "host", {"h.test", "PUT", "/a"}: "post", {"x", "PUT", "b"}: "",
	} {
		switch m := find(router, request[0], request[1], request[2]); {
		case m == nil && want != "", m != nil && m.Name != want:
			t.Errorf("%s: got %+v, want %q", request, m, want)
		}
	}
}

func TestThePathOfARouteIsStripped(t *testing.T) {
	for _, c := range []struct {
		prefix, path string
		strip        bool
		want         string
	}{
		{"/a", "/a", true, "/"},
		{"/a", "/a/x", true, "/x"},
		{"/a", "/ax", true, "/x"},
		{"/a/", "/a/", true, "/"},
		{"", "/a", true, "/a"},
		{"/a", "/a/x", false, "/a/x"},
		{"/", "/", false, "/"},
	} {
		m := match{&Route{StripPath: c.strip}, c.prefix}
		if got := m.upstreamPath(c.path); got != c.want {
			t.Errorf("%+v: got %s", c, got)
		}
	}
}
