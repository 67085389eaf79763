package fromenvoy_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/fromenvoy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/fromkong"
)

var options = fromkong.Options{Redis: "redis.internal:6379", SideBySide: true, Checks: []schema.Check{
	func(c schema.Config) error { _, err := resolve.FromConfig(c); return err },
}}

func TestFilesAreConvertedAsTheGoldenFileShows(t *testing.T) {
	var files []fromenvoy.File
	for _, name := range []string{"rules.yml", "more.yml"} {
		text, err := os.ReadFile("testdata/" + name)
		require.NoError(t, err)
		files = append(files, fromenvoy.File{Name: name, Text: text})
	}
	result, err := fromenvoy.Convert(files, options)
	require.NoError(t, err)
	local, err := fromenvoy.Convert(files, fromkong.Options{})
	require.NoError(t, err)
	var out strings.Builder
	fmt.Fprintf(&out, "-- config --\n%s-- mapping --\n%s-- report --\n", result.Text, result.Mapping)
	used := map[fromkong.Difference]bool{}
	for _, e := range result.Entries {
		fmt.Fprintf(&out, "%s:%d %s: %s: %v %v\n", e.File, e.Line, e.Path, e.For, e.Limits, e.Differences)
		for _, p := range e.Problems {
			fmt.Fprintf(&out, "  %s\n", p.Message)
		}
	}
	for _, e := range slices.Concat(result.Entries, local.Entries) {
		for _, d := range e.Differences {
			used[d] = true
		}
	}
	golden.Check(t, "testdata/rules.golden", out.String())
	for _, d := range fromenvoy.Differences() {
		assert.True(t, used[d.ID], "no entry of the file has the difference %s", d.ID)
	}
}

func TestAFileThatIsNoConfigIsAnErrorThatSaysWhere(t *testing.T) {
	for text, want := range map[string]string{
		"domain: a\ndescriptors: [{key: b, limit: {}}]":                            "a.yaml: is no config of envoyproxy/ratelimit: yaml: unmarshal errors:\n  line 2: field limit not found",
		"domain: a\ndescriptors:\n- key: b\n  rate_limit: {requests_per_unit: -1}": "line 4: cannot unmarshal",
		"descriptors: []":        "domain: is required",
		"_format_version: '3.0'": "line 1: field _format_version",
		"a: [":                   "is no config of envoyproxy/ratelimit: yaml",
	} {
		_, err := fromenvoy.Convert([]fromenvoy.File{{Name: "a.yaml", Text: []byte(text)}}, options)
		assert.ErrorContains(t, err, want, text)
	}
	_, err := fromenvoy.Convert(nil, fromkong.Options{Redis: "redis"})
	assert.ErrorContains(t, err, "--redis must be HOST:PORT")
}
