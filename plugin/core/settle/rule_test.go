package settle_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func rule(t testing.TB, s schema.Settle) *settle.Rule {
	t.Helper()
	r, err := settle.New(s, nil)
	require.NoError(t, err)
	return r
}

func from(sources ...string) schema.Settle {
	var s schema.Settle
	for _, source := range sources {
		s.Sources = append(s.Sources, schema.SettleSource{From: source})
	}
	return s
}

// answer returns the answer for a request that the upstream has answered, with a log entry.
func answer(log string) settle.Answer {
	return settle.Answer{Status: 200, Source: settle.SourceService, Tried: true, Log: settle.ParseLog([]byte(log))}
}

func TestAnOutcomeFollowsFromHowTheRequestEnded(t *testing.T) {
	r := rule(t, schema.Settle{
		Sources: []schema.SettleSource{{From: "log.n"}}, Reserve: 500, RefundOn: []int64{502, 429},
	})
	const log = `{"n":7,"tries":[{}]}`
	for _, test := range []struct {
		name   string
		status int
		source string
		tried  bool
		log    string
		actual int64
		want   settle.Outcome
	}{
		{"answered", 200, "service", true, log, 7, settle.Measured},
		{"answered with an error", 500, "service", true, log, 7, settle.Measured},
		{"a status of refund_on", 502, "service", true, log, 0, settle.Refunded},
		{"a status of refund_on, unmeasured", 429, "service", true, `{}`, 0, settle.Refunded},
		{"denied by a plugin", 429, "exit", false, log, 0, settle.Refunded},
		{"ended by a plugin after a try", 403, "exit", true, log, 0, settle.Refunded},
		{"no answer of the upstream", 502, "error", true, log, 0, settle.Refunded},
		{"without a try", 200, "service", false, log, 0, settle.Refunded},
		{"closed by the client before a try", 499, "service", false, log, 0, settle.Refunded},
		{"closed by the client", 499, "service", true, log, 0, settle.Unmeasured},
		{"no value", 200, "service", true, `{"m":7}`, 0, settle.Unmeasured},
		{"an invalid value", 200, "service", true, `{"n":"7"}`, 0, settle.Unmeasured},
		{"no log entry", 200, "service", true, "", 0, settle.Unmeasured},
		{"an unknown source", 200, "", true, log, 0, settle.Unmeasured},
	} {
		a := settle.Answer{Status: test.status, Source: test.source, Tried: test.tried}
		a.Log = settle.ParseLog([]byte(test.log))
		if actual, outcome := r.Measure(&a, settle.Call{}); actual != test.actual || outcome != test.want {
			t.Errorf("%s: %d, %d; want %d, %d", test.name, actual, outcome, test.actual, test.want)
		}
	}
}

func TestTheValuesOfAllSourcesAreWeightedAddedAndRoundedUpOnce(t *testing.T) {
	weighted := func(weights ...int64) schema.Settle {
		s := from("log.a", "log.b", "header.X-Tokens", "shared.tokens")
		s.Sources = s.Sources[:len(weights)]
		for i := range weights {
			s.Sources[i].Weight = weights[i]
		}
		return s
	}
	for _, test := range []struct {
		name           string
		s              schema.Settle
		log            string
		header, shared string
		want           int64
	}{
		{"a weight", weighted(1, 4), `{"a":24,"b":310}`, "", "", 1264},
		{"fractions", weighted(1, 1), `{"a":0.1,"b":0.2}`, "", "", 1},
		{"fractions that add up to a whole number", weighted(10, 10), `{"a":0.1,"b":0.2}`, "", "", 3},
		{"a fraction times a weight", weighted(10), `{"a":1.1}`, "", "", 11},
		{"just above a whole number", weighted(1), `{"a":3.00001}`, "", "", 4},
		{"nothing", weighted(1, 1), `{"a":0,"b":0}`, "", "", 0},
		{"all kinds of sources", weighted(1, 2, 3, 4), `{"a":1,"b":1}`, "1", "1", 10},
		{"the largest", weighted(1), `{"a":1000000000000}`, "", "", 1_000_000_000_000},
		{"more than the largest", weighted(1_000_000, 1), `{"a":9007199254740992,"b":1}`, "", "", 1_000_000_000_000},
	} {
		a := answer(test.log)
		a.Headers = map[string]string{"x-tokens": test.header}
		a.Shared = map[string]string{"tokens": test.shared}
		actual, outcome := rule(t, test.s).Measure(&a, settle.Call{})
		if actual != test.want || outcome != settle.Measured {
			t.Errorf("%s: %d, %d; want %d", test.name, actual, outcome, test.want)
		}
	}
}

func TestOnlyNumbersOfHeadersAndSharedValuesAreMeasured(t *testing.T) {
	header, shared := rule(t, from("header.X-Tokens")), rule(t, from("shared.tokens"))
	measured := map[string]int64{"0": 0, "7": 7, "7.0": 7, "7.2": 8, "7e2": 700, "9007199254740992": 1_000_000_000_000}
	for _, bad := range []string{
		"", " ", "-1", "-0", "+7", "x", "7 ", " 7", "7,8", "07", "0x7", "7_000", "NaN", "Inf", "1e300", "1e999", "true",
		`"7"`, "9007199254740994", "٧", strings.Repeat("0", 100), "7" + strings.Repeat(".", 1000),
	} {
		measured[bad] = -1
	}
	for text, want := range measured {
		a := answer("")
		a.Headers = map[string]string{"x-tokens": text}
		a.Shared = map[string]string{"tokens": text}
		for name, r := range map[string]*settle.Rule{"header": header, "shared": shared} {
			actual, outcome := r.Measure(&a, settle.Call{})
			if want < 0 && outcome != settle.Unmeasured || want >= 0 && (actual != want || outcome != settle.Measured) {
				t.Errorf("%s %q: %d, %d; want %d", name, text, actual, outcome, want)
			}
		}
	}
}

func TestAReservationIsTheHeadersThenTheRulesThenTheCost(t *testing.T) {
	header := from("shared.n")
	header.ReserveHeader, header.ReserveMax = "x-max-tokens", 4000
	both := header
	both.Reserve = 500
	constant := from("shared.n")
	constant.Reserve = 500
	for _, test := range []struct {
		name         string
		s            schema.Settle
		wanted, want int64
	}{
		{"the cost", from("shared.n"), 0, 3},
		{"no header is read", from("shared.n"), 7, 3},
		{"a constant", constant, 7, 500},
		{"a header", header, 7, 7},
		{"a header that asks for too much", header, 4001, 4000},
		{"no header", header, 0, 3},
		{"a header before the constant", both, 7, 7},
		{"the constant without a header", both, 0, 500},
	} {
		assert.Equal(t, test.want, rule(t, test.s).Reserve(test.wanted, 3), "%s", test.name)
	}
	assert.Equal(t, "X-Max-Tokens", rule(t, header).ReserveHeader(), "the header")
}

func TestNeedsListWhatSourcesRead(t *testing.T) {
	first := rule(t, from("header.X-B", "header.x-a", "shared.n")).Needs()
	second := rule(t, from("log.response.size", "header.X-a", "shared.m")).Needs()
	want := settle.Needs{Log: true, Headers: []string{"x-a", "x-b"}, Shared: []string{"m", "n"}}
	assert.Equal(t, want, first.Union(second))
	assert.True(t, !first.Log && reflect.DeepEqual(first.Headers, []string{"x-a", "x-b"}), "the first needs %+v", first)
}

func TestARuleHasTheDefaultsOfItsRecord(t *testing.T) {
	r := rule(t, from("shared.n"))
	if r.Timeout() != 600*limit.Second || r.RefundOn(500) || r.Spec().Sources[0].Weight != 1 {
		t.Errorf("a rule with the timeout %d and %+v", r.Timeout(), r.Spec())
	}
	s := from("shared.n")
	s.Timeout, s.RefundOn = 5, []int64{500, 404, 500}
	r = rule(t, s)
	if r.Timeout() != 5*limit.Second || !r.RefundOn(500) || !r.RefundOn(404) || r.RefundOn(502) {
		t.Errorf("a rule with the timeout %d and %+v", r.Timeout(), r.Spec())
	}
	if reflect.DeepEqual(s.RefundOn, r.Spec().RefundOn) || s.Sources[0].Weight != 0 {
		t.Errorf("the record was changed to %+v", s)
	}
}

func TestOnlySizesOfTheLogAreBytes(t *testing.T) {
	for text, want := range map[string]bool{
		"log.response.size": true, "log.request.size": true, "log.response.size log.request.size": true,
		"log.response.size log.latencies.proxy": false, "log.ai.*.usage.total_tokens": false, "shared.bytes": false,
		"header.Content-Length": false, "log.request.size.x": false,
	} {
		var s schema.Settle
		for from := range strings.FieldsSeq(text) {
			s.Sources = append(s.Sources, schema.SettleSource{From: from})
		}
		assert.Equal(t, want, rule(t, s).CountsBytes(), "%s: CountsBytes", text)
		if s.Sources[0].Weight = 4; rule(t, s).CountsBytes() {
			t.Errorf("%s with a weight counts bytes", text)
		}
	}
}

func TestARuleDescribesItsReservationAndItsSources(t *testing.T) {
	s := from("log.ai.*.usage.prompt_tokens", "log.ai.*.usage.completion_tokens")
	if got, want := rule(t, s).Spec().Describe(""), "reserves the request's cost, settles to "+
		"log.ai.*.usage.prompt_tokens + log.ai.*.usage.completion_tokens"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	s.Reserve, s.ReserveHeader, s.ReserveMax, s.RefundOn = 500, "X-Max-Tokens", 4000, []int64{503, 502}
	s.Sources[1].Weight = 4
	if got, want := rule(t, s).Spec().Describe(""), "reserves the number in X-Max-Tokens, at most 4000, or else 500, "+
		"settles to log.ai.*.usage.prompt_tokens + 4 × log.ai.*.usage.completion_tokens, or to 0 after status 502, 503"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestARecordOutOfBoundsIsNoRule(t *testing.T) {
	for field, edit := range map[string]func(*schema.Settle){
		"settle.sources":           func(s *schema.Settle) { s.Sources = nil },
		"settle.sources[0].from":   func(s *schema.Settle) { s.Sources[0].From = "body.n" },
		"settle.sources[0].weight": func(s *schema.Settle) { s.Sources[0].Weight = 1_000_000_000 },
		"settle.sources[1].from":   func(s *schema.Settle) { s.Sources = from("shared.n", "log.a..b").Sources },
		"settle.reserve":           func(s *schema.Settle) { s.Reserve = -1 },
		"settle.reserve_max":       func(s *schema.Settle) { s.ReserveHeader = "X-Max-Tokens" },
		"settle.timeout":           func(s *schema.Settle) { s.Timeout = 86_401 },
		"settle.refund_on[0]":      func(s *schema.Settle) { s.RefundOn = []int64{600} },
	} {
		s := from("shared.n")
		edit(&s)
		_, err := settle.New(s, nil)
		fault := new(limit.FieldError)
		assert.True(t, errors.As(err, &fault) && fault.Field == field, "%s: %v", field, err)
	}
	for _, source := range []string{
		"", "log", "log.", "log.a.", "header.", "header.X-A.", "shared.", "shared", "consumer.id",
	} {
		if _, err := settle.New(from(source), nil); err == nil {
			t.Errorf("%q is a source", source)
		}
	}
}

func TestAHeaderThatListsNumbersIsReadByKey(t *testing.T) {
	r := rule(t, from("header.X-Kong-Limit.video"))
	needs := r.Needs()
	assert.True(t, reflect.DeepEqual(needs.Headers, []string{"x-kong-limit"}), "needs the headers %q", needs.Headers)
	for _, test := range []struct {
		name    string
		headers map[string]string
		actual  int64
		want    settle.Outcome
	}{
		{"listed", map[string]string{"x-kong-limit": "image=3, video = 7 ,x"}, 7, settle.Measured},
		{"nothing", map[string]string{"x-kong-limit": "video=0"}, 0, settle.Measured},
		{"not listed", map[string]string{"x-kong-limit": "image=3"}, 0, settle.Measured},
		{"other letters", map[string]string{"x-kong-limit": "Video=3"}, 0, settle.Measured},
		{"without the header", nil, 0, settle.Measured},
		{"the header twice", map[string]string{"x-kong-limit": ""}, 0, settle.Unmeasured},
		{"the key twice", map[string]string{"x-kong-limit": "video=1, video=2"}, 0, settle.Unmeasured},
		{"no number", map[string]string{"x-kong-limit": "video=many"}, 0, settle.Unmeasured},
		{"no value", map[string]string{"x-kong-limit": "video"}, 0, settle.Unmeasured},
		{"a negative number", map[string]string{"x-kong-limit": "video=-1"}, 0, settle.Unmeasured},
	} {
		a := settle.Answer{Status: 200, Source: settle.SourceService, Tried: true, Headers: test.headers}
		actual, outcome := r.Measure(&a, settle.Call{})
		if outcome != test.want || outcome == settle.Measured && actual != test.actual {
			t.Errorf("%s: %d, %d; want %d, %d", test.name, actual, outcome, test.actual, test.want)
		}
	}
}
