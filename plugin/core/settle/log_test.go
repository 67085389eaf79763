package settle

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// recorded returns the log entries of a running Kong 3.9.3 by their case. The entry of ai-proxy is one of them with the
// statistics that this plugin adds.
func recorded(t testing.TB) map[string]string {
	t.Helper()
	file, err := os.Open("testdata/kong-3.9.3-log.jsonl")
	require.NoError(t, err)
	defer file.Close()
	entries := map[string]string{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var line struct{ Case, Log string }
		require.NoError(t, json.Unmarshal(lines.Bytes(), &line))
		entries[line.Case] = line.Log
	}
	if err := lines.Err(); err != nil || len(entries) < 6 {
		t.Fatalf("%d entries: %v", len(entries), err)
	}
	return entries
}

func sumOf(entry, path string) (float64, bool) {
	return ParseLog([]byte(entry)).sum(strings.Split(path, "."))
}

func TestAPathReadsARecordedLogEntry(t *testing.T) {
	entries := recorded(t)
	for _, test := range []struct {
		entry, path string
		want        float64
	}{
		{"log-chunked", "response.size", 340},
		{"log-chunked", "request.size", 114},
		{"log-chunked", "latencies.receive", 152},
		{"log-chunked", "latencies.proxy", 0},
		{"log-chunked", "latencies.*", 306},
		{"log-chunked", "tries.*.balancer_latency_ns", 11264},
		{"log-client-closed", "latencies.proxy", 399},
		{"ai-proxy", "ai.proxy.usage.total_tokens", 334},
		{"ai-proxy", "ai.*.usage.completion_tokens", 310},
		{"ai-proxy", "*.*.usage.prompt_tokens", 24},
		{"ai-proxy", "ai.*.usage.cost", 0.00316},
	} {
		if got, ok := sumOf(entries[test.entry], test.path); !ok || got != test.want {
			t.Errorf("%s: %s is %v (%v), want %v", test.entry, test.path, got, ok, test.want)
		}
	}
	for _, missing := range [][2]string{
		{"log-chunked", "ai.*.usage.total_tokens"},
		{"log-chunked", "response"},
		{"log-chunked", "response.size.bytes"},
		{"log-chunked", "response.headers.content-length"},
		{"log-chunked", "upstream_status"}, // a text
		{"log-chunked", "tries.balancer_latency"},
		{"log-no-route", "latencies.proxy"}, // -1
		{"log-no-route", "tries.*.port"},
		{"log-serialize", "response.headers.*"},
	} {
		if got, ok := sumOf(entries[missing[0]], missing[1]); ok {
			t.Errorf("%s: %s is %v, want no value", missing[0], missing[1], got)
		}
	}
}

func TestAPathSumsAllNumbersThatItLeadsTo(t *testing.T) {
	for _, test := range []struct {
		entry, path string
		want        float64
	}{
		{`{"ai":{"a":{"n":1},"b":{"n":2.5},"c":{"m":9},"d":7,"e":null,"f":{"n":null}}}`, "ai.*.n", 3.5},
		{`{"latencies":{"proxy":-1,"receive":3}}`, "latencies.*", 3},
		{` { "a" : [ 1 , 2 , [ 3 ] , { "b" : 4 } ] } `, "a.*.b", 4},
		{`{"a":[1,2,3]}`, "a.*", 6},
		{`{"a\/b":1,"\u0061":2}`, "a", 2},
		{`{"":{"a":1},"a":{"":5}}`, "a.*", 5},
		{`{"a":"\"}{","b":["]",{"b":"\\"}],"n":1e3}`, "n", 1000},
		{`{"n":9007199254740992}`, "n", 1 << 53},
		{`{"n":0}`, "n", 0},
	} {
		got, ok := sumOf(test.entry, test.path)
		assert.True(t, ok && got == test.want, "%s: %s is %v (%v), want %v", test.entry, test.path, got, ok, test.want)
	}
}

func TestBadValuesOfALogHaveNoSum(t *testing.T) {
	for _, test := range [][2]string{
		{``, "n"},
		{`null`, "n"},
		{`7`, "n"},
		{`"n"`, "n"},
		{`{}`, "n"},
		{`[]`, "*"},
		{`{"n":1`, "n"},
		{`{"n":1} x`, "n"},
		{`{"n":"7"}`, "n"},
		{`{"n":true}`, "n"},
		{`{"n":[7]}`, "n"},
		{`{"n":{"n":7}}`, "n"},
		{`{"n":-1}`, "n"},
		{`{"n":-0}`, "n"},
		{`{"n":NaN}`, "n"},
		{`{"n":1e300}`, "n"},
		{`{"n":1e999}`, "n"},
		{`{"n":9007199254740993.5e1}`, "n"},
		{`{"n":` + strings.Repeat("9", 100) + `}`, "n"},
		{`{"latencies":{"proxy":-1}}`, "latencies.proxy"},
		{`{"latencies":{"proxy":-1.0}}`, "latencies.proxy"},
		{`{"latencies":{"proxy":-2,"receive":3}}`, "latencies.*"},
		{`{"a":{"n":1},"b":{"n":"x"}}`, "*.n"},
	} {
		if got, ok := sumOf(test[0], test[1]); ok {
			t.Errorf("%s: %s is %v, want no value", test[0], test[1], got)
		}
	}
}

func TestHugeAndDeepLogEntriesAreReadOrHaveNoSum(t *testing.T) {
	list := `{"a":[` + strings.TrimSuffix(strings.Repeat("1,", 200_000), ",") + `],"n":7}`
	keys := strings.Builder{}
	for i := range 20_000 {
		fmt.Fprintf(&keys, `"k%d":{"n":1},`, i)
	}
	many := `{"a":{` + strings.TrimSuffix(keys.String(), ",") + `},"n":7}`
	deep := `{"a":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `,"n":7}`
	tooDeep := `{"a":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `,"n":7}`
	tooLong := `{"a":"` + strings.Repeat("x", maxLogLength) + `","n":7}`
	for name, test := range map[string]struct {
		entry, path string
		ok          bool
	}{
		"a value after a long list":          {list, "n", true},
		"too many items":                     {list, "a.*", false},
		"a value after many keys":            {many, "n", true},
		"too many keys":                      {many, "a.*.n", false},
		"a value after a deep one":           {deep, "n", true},
		"a path into a deep value":           {deep, "a.*.*.*.*.*.*.*.*.*.*.*.*.*.*.n", false},
		"a deeper entry than a reader reads": {tooDeep, "n", false},
		"a longer entry than 1 MiB":          {tooLong, "n", false},
	} {
		if got, ok := sumOf(test.entry, test.path); ok != test.ok || ok && got != 7 {
			t.Errorf("%s: %v (%v), want %v", name, got, ok, test.ok)
		}
	}
}

func TestARequestWasTriedUnlessItsLogEntryListsNoTry(t *testing.T) {
	entries := recorded(t)
	for name, want := range map[string]bool{
		"log-chunked": true, "log-client-closed": true, "log-no-route": true, "log-serialize-after-exit": false,
	} {
		assert.Equal(t, want, ParseLog([]byte(entries[name])).Tried(), "%s: tried", name)
	}
	for entry, want := range map[string]bool{
		`{"tries":{}}`: false, `{"tries":[]}`: false, `{"tries":null}`: true, `{"a":{"tries":[]}}`: true, `{}`: true,
		`{"tries":"[]"}`: true, `{"tries":[{}]}`: true, `{"tries":[`: true, ``: true, `[]`: true,
	} {
		assert.Equal(t, want, ParseLog([]byte(entry)).Tried(), "%s: tried", entry)
	}
}

// reference returns the sum of a path in a tree of the whole entry.
func reference(value any, path []string) (total float64, numbers int, ok bool) {
	if len(path) == 0 {
		n, isNumber := value.(float64)
		if value == nil {
			return 0, 0, true
		}
		return n, 1, isNumber && n >= 0 && !math.Signbit(n) && n <= 1<<53
	}
	var inner []any
	switch v := value.(type) {
	case map[string]any:
		for key, member := range v {
			if path[0] == "*" || path[0] == key {
				inner = append(inner, member)
			}
		}
	case []any:
		if path[0] == "*" {
			inner = v
		}
	}
	ok = true
	for _, next := range inner {
		sum, n, valid := reference(next, path[1:])
		total, numbers, ok = total+sum, numbers+n, ok && valid
	}
	return total, numbers, ok
}

func FuzzLog(f *testing.F) {
	for _, entry := range recorded(f) {
		f.Add([]byte(entry), "ai.*.usage.total_tokens")
	}
	f.Add([]byte(`{"a":[1,{"b":2},null,-1,"\"",true],"a":{}}`), "a.*.b")
	f.Add([]byte(`{"a":{"b":{"c":1e3}},"d":{"b":{"c":2}}}`), "*.b.*")
	f.Fuzz(func(t *testing.T, entry []byte, path string) {
		keys := strings.Split(path, ".")
		got, ok := ParseLog(entry).sum(keys)
		var tree any
		if err := json.Unmarshal(entry, &tree); err != nil && ok && len(entry) > 0 {
			if strings.Contains(err.Error(), "cannot unmarshal number") {
				return // elsewhere in the entry
			}
			t.Fatalf("%q is no JSON (%v), but %s is %v", entry, err, path, got)
		}
		if !ok || keys[0] == "latencies" {
			return
		}
		want, numbers, valid := reference(tree, keys)
		if !valid || numbers == 0 || math.Abs(got-want) > 1e-9*want {
			t.Fatalf("%q: %s is %v, want %v (%v)", entry, path, got, want, valid)
		}
	})
}

func TestALogIsReadNoFurtherThanItsVisitorWants(t *testing.T) {
	log, visits := ParseLog([]byte(`{"a":{"x":[1,2,3],"y":[4]},"b":[[5]]}`)), 0
	assert.False(t, log.walk([]string{"*", "*", "*"}, func(string) bool { visits++; return visits < 2 }))
	assert.Equal(t, 2, visits)
}

func TestWhetherAnAnswerWasStreamedIsReadForTokensOfKongAlone(t *testing.T) {
	r, err := New(schema.Settle{Sources: []schema.SettleSource{{From: "shared.n"}}}, nil)
	require.NoError(t, err)
	a := Answer{Status: 200, Source: SourceService, Tried: true, Shared: map[string]string{"n": "5"}}
	measure := func() { _, _ = r.Measure(&a, Call{}) }
	without := testing.AllocsPerRun(100, measure)
	a.Log = ParseLog([]byte(`{"response":{"headers":{"content-type":"text/plain","a":"b"}}}`))
	assert.Equal(t, without, testing.AllocsPerRun(100, measure), "allocations")
}
