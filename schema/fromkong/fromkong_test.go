package fromkong_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/deck"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/fromkong"
)

// compiles is what the command checks beyond the schema.
func compiles(config schema.Config) error {
	_, err := resolve.FromConfig(config)
	return err
}

// convert converts a file, whose result must have no faults.
func convert(t testing.TB, text []byte, o fromkong.Options) *fromkong.Result {
	t.Helper()
	o.Checks = []schema.Check{compiles}
	result, err := fromkong.Convert(text, o)
	require.NoError(t, err)
	for _, f := range deck.Validate(bytes.NewReader(result.Text), "out.yml", compiles) {
		if f.Severity == deck.Error {
			t.Errorf("the result has a fault: %s", f)
		}
	}
	return result
}

// describe writes a result as the golden files have it.
func describe(b *strings.Builder, title string, result *fromkong.Result) {
	fmt.Fprintf(b, "-- %s --\n%s-- report of %s --\n", title, result.Text, title)
	for _, e := range result.Entries {
		state := "stays"
		if e.Converted {
			state = "namespace " + e.Namespace
		}
		fmt.Fprintf(b, "%d %s: %s for %s: %s\n", e.Line, e.Path, e.Plugin, e.For, state)
		for _, limit := range e.Limits {
			fmt.Fprintf(b, "  %s\n", limit)
		}
		for _, p := range e.Problems {
			fmt.Fprintf(b, "  %d %s %s\n", p.Line, p.Path, p.Message)
		}
		for _, d := range e.Differences {
			fmt.Fprintf(b, "  differs: %s\n", d)
		}
	}
}

func TestFilesAreConvertedAsTheirGoldenFilesShow(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yml")
	if err != nil || len(files) == 0 {
		t.Fatalf("found %v (%v)", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			var got strings.Builder
			describe(&got, "replaced", convert(t, text, fromkong.Options{}))
			describe(&got, "side by side", convert(t, text, fromkong.Options{SideBySide: true}))
			describe(&got, "with a Redis", convert(t, text, fromkong.Options{Redis: "redis.internal:6380"}))
			golden.Check(t, strings.TrimSuffix(file, ".yml")+".golden", got.String())
		})
	}
}

func TestAFileInJSONStaysJSON(t *testing.T) {
	const text = `{"_format_version": "3.0", "plugins": [{"name": "rate-limiting", "config": {"minute": 5, "policy": "local"}}]}`
	for _, o := range []fromkong.Options{{}, {SideBySide: true}} {
		result := convert(t, []byte(text), o)
		var file struct {
			Version string `json:"_format_version"`
			Plugins []struct {
				Name   string
				Config struct {
					Tiers []struct{ Limits []struct{ Limit int } }
				}
			}
		}
		if err := json.Unmarshal(result.Text, &file); err != nil {
			t.Fatalf("%v\n%s", err, result.Text)
		}
		last := file.Plugins[len(file.Plugins)-1]
		if file.Version != "3.0" || last.Name != schema.Name || last.Config.Tiers[0].Limits[0].Limit != 5 {
			t.Errorf("%+v", file)
		}
	}
}
