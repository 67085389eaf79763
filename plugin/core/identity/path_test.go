package identity_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
)

// testdata/paths.jsonl is what a Kong 3.9.3 answered to kong.request.get_path and to get_var("request"), for each
// request line that it let through to the plugin.
func TestPathsAreNormalisedAsARealKongDoes(t *testing.T) {
	file, err := os.Open("testdata/paths.jsonl")
	require.NoError(t, err)
	defer file.Close()
	const recorded = 31
	rows := 0
	for lines := bufio.NewScanner(file); lines.Scan(); rows++ {
		var row struct {
			RequestLine string `json:"get_var_request"`
			Path        string `json:"get_path"`
		}
		require.NoError(t, json.Unmarshal(lines.Bytes(), &row), "row %d", rows+1)
		_, target, _ := strings.Cut(strings.TrimSuffix(row.RequestLine, " HTTP/1.1"), " ")
		got := identity.NormalizePath(target)
		assert.True(t, got == row.Path, "NormalizePath(%q) = %q, Kong says %q", target, got, row.Path)
	}
	assert.Equal(t, recorded, rows, "read %d recorded rows, want %d", rows, recorded)
}

func TestPathOfATarget(t *testing.T) {
	tests := []struct{ target, want string }{
		{"", ""},
		{"/", "/"},
		{"/?q", "/"},
		{"/a?b=/../c", "/a"},
		{"/a%3Fb", "/a%3Fb"},
		{"/..", "/"},
		{"/../..//../a", "/a"},
		{"/a/b/../../../c/", "/c/"},
		{"/a/%2E%2e/b", "/b"},
		{"/%2e.//x", "/x"},
		{"/a/...", "/a/..."},
		{"/a/..b", "/a/..b"},
		{"/%25%32%65", "/%252e"}, // decoded once, not twice
		{"/%2%65", "/%2e"},       // nginx rejects it; the router would see this
		{"/%", "/%"},
		{"/%4", "/%4"},
		{"/%zz%41", "/%zzA"},
		{"/a#b/../c", "/c"}, // a fragment is nothing special to the router
		{"/%00\xff", "/\x00\xff"},
		{"http://kong", "/"},
		{"http://kong?q", "/"},
		{"http://kong:8000/%61//b", "/a/b"},
		{"https://u@h/../x", "/x"},
	}
	for _, test := range tests {
		assert.Equal(t, test.want, identity.NormalizePath(test.target), "NormalizePath(%q)", test.target)
	}
}

// kongNormalize is the rule of kong/tools/uri.lua (normalize with merged slashes) once more, in Kong's own shape: a
// regular expression for the triplets, then RFC 3986 section 5.2.4 on an input that is eaten from its beginning.
func kongNormalize(uri string) string {
	if uri == "" || uri == "/" {
		return uri
	}
	uri = triplet.ReplaceAllStringFunc(uri, decodeTriplet)
	if !strings.Contains(uri, ".") && !strings.Contains(uri, "//") {
		return uri
	}
	var output []string
	for uri != "" {
		switch {
		case uri == "/.":
			uri = "/"
		case uri == "/..":
			uri, output = "/", output[:max(len(output)-1, 0)]
		case uri == "." || uri == "..":
			uri = ""
		case strings.HasPrefix(uri, "../../"):
			uri = uri[3:]
		case strings.HasPrefix(uri, "./"):
			uri = uri[2:]
		case strings.HasPrefix(uri, "/./"):
			uri = uri[2:]
		case strings.HasPrefix(uri, "/../"):
			uri, output = uri[3:], output[:max(len(output)-1, 0)]
		case strings.HasPrefix(uri, "//"):
			uri = uri[1:]
		default:
			end := strings.IndexByte(uri[1:], '/') + 1
			if end == 0 {
				end = len(uri)
			}
			output = append(output, uri[:end])
			uri = uri[end:]
		}
	}
	return strings.Join(output, "")
}

var triplet = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)

func decodeTriplet(escaped string) string {
	c, err := strconv.ParseUint(escaped[1:], 16, 8)
	if err != nil {
		panic(err) // the pattern lets two hexadecimal digits through only
	}
	if strings.IndexByte("!*'();:@&=+$,/?%#[]", byte(c)) >= 0 {
		return strings.ToUpper(escaped)
	}
	return string([]byte{byte(c)})
}

// checkPath checks everything that holds for any target that begins with a slash.
func checkPath(t interface{ Fatalf(string, ...any) }, target string) {
	path, _, _ := strings.Cut(target, "?")
	got := identity.NormalizePath(target)
	if want := kongNormalize(path); got != want {
		t.Fatalf("NormalizePath(%q) = %q, Kong's rule says %q", target, got, want)
	}
	if !strings.HasPrefix(got, "/") {
		t.Fatalf("NormalizePath(%q) = %q does not begin with a slash", target, got)
	}
	// A normalised path is normal, unless it holds a triplet that was none before its neighbours were decoded
	// (/%2%65 becomes /%2e). That takes a percent sign without a triplet of its own, which nginx rejects.
	becameTriplet := triplet.ReplaceAllStringFunc(got, decodeTriplet) != got
	if again := identity.NormalizePath(got); again != got && !becameTriplet {
		t.Fatalf("NormalizePath(%q) = %q, which becomes %q", target, got, again)
	}
	if strings.Count(path, "%") == len(triplet.FindAllString(path, -1)) && becameTriplet {
		t.Fatalf("NormalizePath(%q) = %q, which can be decoded once more", target, got)
	}
}

// nasty is a target that begins with a slash, made of what normalisation looks at.
var nasty = rapid.Custom(func(t *rapid.T) string {
	pieces := rapid.SliceOf(rapid.OneOf(
		rapid.SampledFrom([]string{
			"/", "//", ".", "..", "/./", "/../", "%2e", "%2E", "%2f", "%2F", "%5c", "%25", "%3f", "%23", "%", "%4",
			"%zz", "a", "2e", "e", "é", "%c3%a9", "\xff", "\x00", "%00", "#", "?", ";", ":", "%3a", "[", "://", "{}",
		}),
		rapid.StringN(0, 3, -1),
	)).Draw(t, "pieces")
	return "/" + strings.Join(pieces, "")
})

func TestAnyPathIsNormalisedByKongsRule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { checkPath(t, nasty.Draw(t, "target")) })
}

func TestEveryEscapeIsDecodedOrKeptByKongsRule(t *testing.T) {
	for c := range 256 {
		for _, format := range []string{"/a%%%02X", "/a%%%02xb", "/%%%02x/../c", "/%%%02X%%2e"} {
			checkPath(t, fmt.Sprintf(format, c))
		}
	}
}

func FuzzNormalizePath(f *testing.F) {
	for _, seed := range []string{
		"", "/", "//a", "/%72ecords", "/a/%2e%2E/b", "/%2%65", "http://h/a", "/a#/../b?c", "*", "a/../b", "/\xff%",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, target string) {
		if strings.HasPrefix(target, "/") {
			checkPath(t, target)
			return
		}
		got := identity.NormalizePath(target)
		require.True(t, got == "" || got[0] == '/', "NormalizePath(%q) = %q does not begin with a slash", target, got)
	})
}

// decodedPaths are targets, the path of Kong's router, and the path when reserved characters are decoded too.
var decodedPaths = []struct{ target, routed, decoded string }{
	{"/records/7", "/records/7", "/records/7"},
	{"/records%2f7", "/records%2F7", "/records/7"},
	{"/records%2F%2F7%2f", "/records%2F%2F7%2F", "/records/7/"},
	{"/a%2F..%2Fb", "/a%2F..%2Fb", "/b"},
	{"/a%2f%2e%2e%2fb", "/a%2F..%2Fb", "/b"},
	{"/%2E%2E/%2e%2e%2Fb", "/..%2Fb", "/b"},
	{"/records%252F7", "/records%252F7", "/records%2F7"}, // once, and no further
	{"/%252e%252e/b", "/%252e%252e/b", "/%2e%2e/b"},
	{"/a%3Fb%23c%5Bd", "/a%3Fb%23c%5Bd", "/a?b#c[d"},
	{"/%2F", "/%2F", "/"},
	{"/a%2Fb?c=%2F", "/a%2Fb", "/a/b"},
}

func TestEndpointsAreMatchedOnTheDecodedPathIfTheConfigSaysSo(t *testing.T) {
	for _, c := range decodedPaths {
		normal := identity.NormalizePath(c.target)
		assert.Equal(t, c.routed, normal, "NormalizePath(%q)", c.target)
		for decode, want := range map[bool]string{false: c.routed, true: c.decoded} {
			rules := identity.Rules{DecodePath: decode}
			rules.Compile(identity.TargetFact)
			request := identity.Request{Known: ^identity.Facts(0), Path: normal}
			var id identity.Identity
			if missing := rules.Identify(&request, &id); missing != 0 || id.Path != want {
				t.Errorf("decoded %v: path of %q is %q, want %q", decode, c.target, id.Path, want)
			}
		}
	}
}

func TestOnlyGRPCsOwnContentTypesMakeACall(t *testing.T) {
	for contentType, want := range map[string]bool{
		"application/grpc":               true,
		"application/grpc+proto":         true,
		"application/grpc+json":          true,
		"application/grpc;charset=utf-8": true,
		"application/grpc-web":           false,
		"application/grpc-web+proto":     false,
		"application/grpc-web-text":      false,
		"application/grpcx":              false,
		"application/json":               false,
		"text/application/grpc":          false,
		"":                               false,
	} {
		request := identity.Request{
			Known:  identity.TargetFact | identity.RouteFact | identity.ContentTypeFact,
			Method: "POST", HTTP2: true, GRPCRoute: true, ContentType: contentType,
		}
		call, missing := request.GRPC()
		assert.True(t, call == want && missing == 0, "%q: call %v, missing %b; want %v", contentType, call, missing, want)
	}
}
