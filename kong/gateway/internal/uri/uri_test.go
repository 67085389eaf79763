package uri

import (
	"strings"
	"testing"
)

func TestNormalizeTable(t *testing.T) {
	for in, want := range map[string]string{
		"/":                  "/",
		"//":                 "/",
		"/..":                "/",
		"/../a":              "/a",
		"/a/./b/../c":        "/a/c",
		"/a/.":               "/a/",
		"/a//..//b":          "/b",
		"/a/..b/":            "/a/..b/",
		"/%2e%2e/x":          "/x",
		"/%2E/x":             "/x",
		"/a%2fb%3d%21":       "/a%2Fb%3D%21",
		"/%25%32%65":         "/%252e",
		"/%E2%82%AC":         "/€",
		"/a/b/../../../../c": "/c",
		"/a/...":             "/a/...",
		"/a/.../..":          "/a/",
		"/trailing//":        "/trailing/",
	} {
		if got := Normalize(in); got != want {
			t.Errorf("Normalize(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestTargetDeniesWhatNginxDenies(t *testing.T) {
	for _, target := range []string{
		"", "*", "foo", "/%", "/%2", "/a%zz", "/a%00b", "/..", "/../a", "/a/../../b",
		"/a%2F..%2F..%2Fb", "//../a", "/a\x01", "/a\x7f", "://x/", "http:///x", "1http://h/x", "localhost:80",
	} {
		if got, ok := Target(target); ok {
			t.Errorf("Target(%q) accepted as %q", target, got)
		}
	}
}

func TestTargetAcceptsWhatNginxAccepts(t *testing.T) {
	for target, want := range map[string]string{
		"/":                  "/",
		"/a?%zz":             "/a?%zz",
		"/a#%zz":             "/a#%zz",
		"/a/../b":            "/a/../b",
		"/%3f%23%25":         "/%3f%23%25",
		"//x//y":             "//x//y",
		"http://h":           "/",
		"http://h?q=1":       "/?q=1",
		"HTTP+x://h:80/a?b":  "/a?b",
		"http://h/http://g/": "/http://g/",
	} {
		if got, ok := Target(target); !ok || got != want {
			t.Errorf("Target(%q) = %q, %v, want %q", target, got, ok, want)
		}
	}
}

func TestEscapeKeepsTripletsAndEncodesTheRest(t *testing.T) {
	if got, want := Escape("/a%2Fb é\\\"~"), "/a%2Fb%20%C3%A9%5C%22~"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func FuzzNormalize(f *testing.F) {
	for _, seed := range []string{"/%25%32%65/..%2f", "/a%3f../%2e%2E/", "//norm/./x/..//y?a=//b", "http://h/norm%2F#a"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, target string) {
		requestURI, ok := Target(target)
		if !ok {
			Normalize(target)
			return
		}
		path, _, _ := strings.Cut(requestURI, "?")
		once := Normalize(path)
		if !strings.HasPrefix(once, "/") {
			t.Fatalf("Normalize(%q) = %q does not begin with /", requestURI, once)
		}
		if strings.Contains(requestURI, "#") {
			return // nginx does not look at the triplets after it
		}
		if twice := Normalize(once); twice != once {
			t.Fatalf("Normalize(%q) = %q, again %q", requestURI, once, twice)
		}
		if strings.Contains(once, "//") {
			t.Fatalf("Normalize(%q) = %q keeps a double slash", requestURI, once)
		}
	})
}
