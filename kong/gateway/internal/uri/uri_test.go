package uri

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// recorded is the answer of a real Kong 3.9.3 to a request line.
type recorded struct {
	RequestLine string `json:"request_line"`
	Status      int    `json:"status"`
	GetPath     string `json:"get_path"`
}

func recordedPaths(t testing.TB) []recorded {
	t.Helper()
	file, err := os.Open("../../testdata/paths.jsonl")
	require.NoError(t, err)
	defer file.Close()
	var rows []recorded
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var row recorded
		require.NoError(t, json.Unmarshal(lines.Bytes(), &row))
		rows = append(rows, row)
	}
	if err := lines.Err(); err != nil || len(rows) == 0 {
		t.Fatalf("read %d rows: %v", len(rows), err)
	}
	return rows
}

func TestEveryRecordedTargetIsReadAsKongReadIt(t *testing.T) {
	for _, row := range recordedPaths(t) {
		target := strings.Fields(row.RequestLine)[1]
		requestURI, ok := Target(target)
		if ok != (row.Status != 400) {
			t.Errorf("%s: accepted %v, Kong answered %d", row.RequestLine, ok, row.Status)
		}
		if !ok {
			continue
		}
		path, _, _ := strings.Cut(requestURI, "?")
		if got := Normalize(path); got != row.GetPath {
			t.Errorf("%s: path %q, want %q as Kong recorded", row.RequestLine, got, row.GetPath)
		}
	}
}

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
	for _, row := range recordedPaths(f) {
		f.Add(strings.Fields(row.RequestLine)[1])
	}
	f.Add("/%25%32%65/..%2f")
	f.Add("/a%3f../%2e%2E/")
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
