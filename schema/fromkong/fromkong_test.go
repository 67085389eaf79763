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
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
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

// chatOf returns Kong's log entry of a chat with a provider.
func chatOf(provider string) string {
	return `{"ai": {"proxy": {"meta": {"provider_name": "` + provider + `", "response_model": "m-1"}, "usage":
		{"prompt_tokens": 24, "completion_tokens": 310, "total_tokens": 334, "cost": 0.00316}}}}`
}

func TestAConvertedLimitChargesWhatKongLogsForItsProvider(t *testing.T) {
	const text = `plugins:
- name: ai-rate-limiting-advanced
  config:
    tokens_count_strategy: %s
    llm_providers: [{name: openai, limit: [500], window_size: [60]}, {name: azure, limit: [500], window_size: [60]}]`
	for counted, want := range map[string]int64{
		"total_tokens": 334, "prompt_tokens": 24, "completion_tokens": 310, "cost": 3160,
	} {
		result := convert(t, fmt.Appendf(nil, text, counted), fromkong.Options{})
		file, _ := deck.ReadFile(bytes.NewReader(result.Text), "out.yml")
		require.Len(t, file.Configs, 1)
		calls := settle.NewCalls(schema.DefaultLLM())
		for _, l := range file.Configs[0].Limits() {
			rule, err := settle.New(*l.Settle, l.Match)
			require.NoError(t, err)
			for provider, want := range map[string]int64{l.Match.Provider: want, "another": 0} {
				answer := settle.Answer{
					Status: 200, Source: settle.SourceService, Tried: true, Log: settle.ParseLog([]byte(chatOf(provider))),
				}
				got, outcome := rule.Measure(&answer, calls.Call(&answer))
				if got != want || outcome != settle.Measured {
					t.Errorf("%s of %s: a chat of %s costs %d (outcome %v), want %d", counted, l.Name, provider, got, outcome, want)
				}
			}
		}
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
