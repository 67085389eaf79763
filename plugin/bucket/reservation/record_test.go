package reservation

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/calendar"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// fullRecord has a value in every field that a record keeps.
func fullRecord(t testing.TB) *Record {
	t.Helper()
	rule, err := settle.New(schema.Settle{
		Sources: []schema.SettleSource{{From: "log.ai.*.usage.total_tokens", Weight: 4}, {From: "header.X-Tokens"}},
		Reserve: 500, ReserveHeader: "X-Max-Tokens", ReserveMax: 4000, RefundOn: []int64{502, 503}, Timeout: 30,
	}, &schema.Match{Model: "gpt-4o*", Provider: "openai"})
	require.NoError(t, err)
	bucket, err := limit.New(limit.Spec{
		Algorithm: limit.TokenBucket, Quantity: 1000, Window: 3600 * limit.Second, Burst: 50, SoftPct: 80, HardPct: 120,
	})
	require.NoError(t, err)
	window, err := limit.New(limit.Spec{
		Algorithm: limit.FixedWindow, Quantity: 1000, Window: 60 * limit.Second, SoftPct: 90, SoftOnly: true,
	})
	require.NoError(t, err)
	r := &Record{
		Made: 1_700_000_000_000_000, Timeout: 30 * limit.Second, chargeOnly: []bool{false, false},
		Tenant: "ac\x00me\xff", Endpoint: "POST /chat",
	}
	llm := schema.DefaultLLM()
	llm.Prices = []schema.ModelPrice{{Model: "gpt-4o*", Prompt: 2_500_000, Completion: 1}}
	r.Calls = settle.NewCalls(llm)
	for i, l := range []limit.Limit{bucket, window} {
		p := &policy.Policy{
			Name: "tokens", Scope: policy.UserEndpoint, Mode: policy.Log, FailMode: policy.FailClosed, Limit: l, Settle: rule,
			Unit: schema.UnitUSD,
		}
		s := decision.Status{
			Source: decision.Redis, Failure: decision.WrongType, Charged: true, Now: 7,
			Receipt: limit.Receipt{At: 1_700_000_000_000_000, Debt: 40, Mark: 9},
		}
		s.Reset = 8
		r.Statuses = append(r.Statuses, s)
		r.Bounds = append(r.Bounds, policy.Bound{Policy: p, Unmatched: i == 1, Cost: int64(500 + i), Key: policy.Key{
			Namespace: "default", Policy: "tokens", Group: policy.ByEndpoint, Kind: policy.KindIP, GroupID: "acme",
			Subject: "u\x00\"\xff%", Endpoint: "POST /chat",
		}})
	}
	return r
}

func TestARecordKeepsTheCalendarOfALimit(t *testing.T) {
	month, err := calendar.New(calendar.Month, calendar.Anchor{Day: 15}, "Europe/Berlin")
	require.NoError(t, err)
	l, err := limit.New(limit.Spec{Algorithm: limit.FixedWindow, Quantity: 1000, Calendar: month})
	require.NoError(t, err)
	r := fullRecord(t)
	r.Bounds[1].Policy.Limit = l
	got, err := decodeRecord(encode(t, r), true)
	require.NoError(t, err)
	spec := got.Bounds[1].Policy.Limit.Spec()
	known, err := spec.Calendar.In(spec.Calendar.Zone())
	require.NoError(t, err)
	assert.Same(t, month, known)
	assert.Equal(t, l.Units(), got.Bounds[1].Policy.Limit.Units())
}

func encode(t testing.TB, r *Record) []byte {
	t.Helper()
	text, err := r.MarshalBinary()
	require.NoError(t, err)
	return text
}

func TestARecordIsReadAsItWasWritten(t *testing.T) {
	r := fullRecord(t)
	written := encode(t, r)
	// Processes of both versions may run at once: a change needs another recordVersion.
	golden.Check(t, filepath.Join("testdata", "record.json"), string(written)+"\n")
	read, err := decodeRecord(written, false)
	require.NoError(t, err)
	assert.Equal(t, r, read, "read")
}

func TestWhatIsNoRecordIsAnError(t *testing.T) {
	valid := string(encode(t, fullRecord(t)))
	for name, text := range map[string]string{
		"nothing":            "",
		"no JSON":            "\x00\x01",
		"null":               "null",
		"more after it":      valid + "{}",
		"another version":    strings.Replace(valid, `"v":3`, `"v":2`, 1),
		"no bound":           `{"v":3,"made":1,"bounds":[]}`,
		"an empty bound":     `{"v":3,"made":1,"bounds":[{}]}`,
		"a negative cost":    strings.Replace(valid, `"cost":500`, `"cost":-1`, 1),
		"an endless cost":    strings.Replace(valid, `"cost":500`, `"cost":1000000000001`, 1),
		"an unknown scope":   strings.Replace(valid, `"scope":8`, `"scope":9`, 1),
		"an unknown mode":    strings.Replace(valid, `"mode":2`, `"mode":3`, 1),
		"an unknown fail":    strings.Replace(valid, `"fail":2`, `"fail":3`, 1),
		"an unknown group":   strings.Replace(valid, `"Group":3`, `"Group":5`, 1),
		"an unknown kind":    strings.Replace(valid, `"Kind":3`, `"Kind":4`, 1),
		"an unknown source":  strings.Replace(valid, `"source":2`, `"source":5`, 1),
		"an unknown failure": strings.Replace(valid, `"failure":5`, `"failure":6`, 1),
		"a negative receipt": strings.Replace(valid, `"Debt":40`, `"Debt":-40`, 1),
		"no policy":          strings.Replace(valid, `"Policy":"tokens"`, `"Policy":""`, 1),
		"a wrong limit":      strings.Replace(valid, `"Quantity":1000`, `"Quantity":0`, 1),
		"another algorithm":  strings.Replace(valid, `"Algorithm":1,`, `"Algorithm":4,`, 1),
		"a broken subject":   strings.Replace(valid, `"Subject":"u%00`, `"Subject":"u%0`, 1),
		"a wrong rule":       strings.Replace(valid, `"weight":4`, `"weight":0`, 1),
		"an early instant":   strings.Replace(valid, `"made":17`, `"made":-17`, 1),
		"too long":           strings.Replace(valid, "acme", strings.Repeat("a", maxRecord), 1),
	} {
		require.True(t, text != valid, "%s: the record was not changed: %s", name, valid)
		_, err := decodeRecord([]byte(text), false)
		assert.True(t, err != nil, "%s is a record: %s", name, text)
	}
}

func TestALongRecordIsNotWritten(t *testing.T) {
	r := fullRecord(t)
	r.Bounds[0].Key.Subject = strings.Repeat("x", maxRecord)
	_, err := r.MarshalBinary()
	assert.True(t, err != nil, "a record was written that is too long to be read")
}

// What a process took from its own buckets, another one cannot return: it would return it from its own.
func TestARecordOfBucketsOfAnotherProcessOnlyChargesMore(t *testing.T) {
	r := fullRecord(t)
	r.Statuses[1].Source = decision.Local
	read, err := decodeRecord(encode(t, r), false)
	require.NoError(t, err)
	assert.Equal(t, decision.Status{Source: decision.Redis, Charged: true}, read.Statuses[1], "its status")
	for actual, want := range map[int64]int64{7: 501, 700: 700} {
		if got := read.cost(1, Settlement{Outcome: Measured, Actual: actual}); got != want {
			t.Errorf("it costs %d of %d used, want %d", got, actual, want)
		}
		if got := read.cost(0, Settlement{Outcome: Measured, Actual: actual}); got != actual {
			t.Errorf("the other bound costs %d of %d used", got, actual)
		}
	}
}

func TestThePricesOfARecordAreWrittenAsOneText(t *testing.T) {
	r := fullRecord(t)
	write := func() { _, _ = r.MarshalBinary() }
	few := testing.AllocsPerRun(10, write)
	llm := schema.DefaultLLM()
	for i := range 2 * 256 { // the most of a config and of rows, of patterns as long as can be
		llm.Prices = append(llm.Prices, schema.ModelPrice{Model: fmt.Sprintf("%0128d", i), Prompt: 999_999_999_999})
	}
	r.Calls = settle.NewCalls(llm)
	// The pools of the race detector vary, by few. Writing the new prices one by one would take hundreds more.
	assert.Less(t, testing.AllocsPerRun(10, write), few+100, "allocations")
	read, err := decodeRecord(encode(t, r), false)
	require.NoError(t, err)
	assert.Equal(t, llm, read.Calls.LLM)
}

func TestAClaimIsChargedTheReservationWhereTheUseIsUnknown(t *testing.T) {
	const of4o = `"meta":{"response_model":"gpt-4o"}`
	for _, test := range []struct {
		log    string // of ai-proxy
		status int
		want   int64
	}{
		{of4o, 200, 20},
		{of4o + `,"usage":{"prompt_tokens":5,"completion_tokens":2}`, 200, 7},
		{`"meta":{"response_model":"claude"}`, 200, 0},
		{`"meta":{"response_model":"claude"}`, 499, 0},
		{``, 200, 20},
		{``, 499, 20},
	} {
		r := moneyRecord(t, schema.SourcePrices, &schema.Match{Model: "gpt-4o*"})
		r.Bounds[0].Cost, r.Bounds[0].Unmatched = 0, true
		a := settle.Answer{Status: test.status, Source: settle.SourceService, Tried: true}
		a.Log = settle.ParseLog([]byte(`{"ai":{"a":{` + test.log + `}}}`))
		for _, late := range []bool{false, true} {
			assert.Equal(t, test.want, r.cost(0, r.Measure(&a, late)[0]), "%+v, late: %t", test, late)
		}
		assert.Zero(t, r.cost(0, Settlement{Outcome: Late}), "its end is lost")
	}
}

func TestOnlyWhatWouldHaveReturnedTokensIsLost(t *testing.T) {
	r := moneyRecord(t, schema.SourcePrices, nil, nil, nil, nil, nil)
	all := []Settlement{
		{Outcome: Streamed}, {Outcome: Unmeasured}, {Outcome: Late}, {Outcome: Measured, Actual: 19}, {Actual: 20},
	}
	r.markLost(all)
	var outcomes []Outcome
	for _, s := range all {
		outcomes = append(outcomes, s.Outcome)
	}
	assert.Equal(t, []Outcome{Streamed, Unmeasured, Late, Lost, Measured}, outcomes)
}

func FuzzARecordIsAnErrorOrIsWrittenAsItWasRead(f *testing.F) {
	f.Add(encode(f, fullRecord(f)))
	f.Add([]byte(`{"v":3,"made":1,"bounds":[{}]}`))
	f.Add([]byte("[[[[[["))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := decodeRecord(text, false)
		if err != nil {
			return
		}
		written := encode(t, r)
		again, err := decodeRecord(written, false)
		require.True(t, err == nil, "%v: %s", err, written)
		if !bytes.Equal(encode(t, again), written) || again.Timeout != r.Timeout || len(again.Bounds) != len(r.Bounds) {
			t.Errorf("%s is another record than %s", encode(t, again), written)
		}
		for i := range r.Bounds {
			cost := r.cost(i, Settlement{Outcome: Late})
			assert.True(t, cost == r.Bounds[i].Cost, "late it costs %d, reserved were %d", cost, r.Bounds[i].Cost)
		}
	})
}

// The key of a bucket does not say whom a request is billed to, and what it called. An address is no tenant.
func TestASettlementNamesTheTenantAndTheEndpointOfItsRequest(t *testing.T) {
	for name, want := range map[identity.Name]string{
		{Kind: identity.Tenant, ID: "acme"}:  "acme",
		{Kind: identity.IP, ID: "192.0.2.7"}: "",
		{}:                                   "",
	} {
		var d decision.Decision
		d.Reset()
		d.Identity.Tenant, d.Resolution.Endpoint = name, "POST /chat"
		d.Resolution.Bounds = []policy.Bound{boundOf(budget(t, 100), 100)}
		d.Grow()
		d.Statuses[0] = decision.Status{Source: decision.Redis, Charged: true}
		text := encode(t, NewRecord(&d, 1))
		read, err := decodeRecord(text, false) // of another process
		require.NoError(t, err)
		w := newWorld(t, 0)
		read.ReportSettled(w, make([]Settlement, 1), limit.Second)
		if s := w.settled[0]; s.Tenant != want || s.Endpoint != "POST /chat" || s.Delay != limit.Second {
			t.Errorf("of %+v the settlement is %+v, want the tenant %q", name, s, want)
		}
	}
}

func TestTheIDOfAnotherTenantSettlesThatTenantsReservationAlone(t *testing.T) {
	w := newWorld(t, 0)
	p := budget(t, 100)
	victim, thief := boundOf(p, 100), boundOf(p, 100)
	thief.Key.GroupID = "globex"
	stolen, own := w.reserve(victim), w.reserve(thief)
	for range 3 { // the log phase of the thief's request, with the id of the victim's, as often as Kong sends it
		w.settle(stolen, usedTokens(0))
	}
	w.settle(own, usedTokens(40))
	w.expect(victim, 0, Measured, Measured)
	assert.EqualValues(t, 40, w.used(thief), "the thief used 40 tokens and paid")
}

// moneyRecord has reserved 20 µUSD of limits that settle alike, where each token costs 1 µUSD.
func moneyRecord(t *testing.T, from string, matches ...*schema.Match) *Record {
	t.Helper()
	llm := schema.DefaultLLM()
	llm.Prices = []schema.ModelPrice{{Model: "gpt-4o*", Prompt: 1_000_000, Completion: 1_000_000}}
	r := &Record{Calls: settle.NewCalls(llm)}
	for _, match := range matches {
		rule, err := settle.New(schema.Settle{Sources: []schema.SettleSource{{From: from}}, Reserve: 20}, match)
		require.NoError(t, err)
		p := &policy.Policy{Name: "budget", Settle: rule, Unit: schema.UnitUSD}
		r.Bounds = append(r.Bounds, policy.Bound{Policy: p, Cost: 20})
	}
	return r
}

func TestACallThatACallerStatesIsChargedItsPriceInEachLimitOfMoney(t *testing.T) {
	for _, from := range []string{schema.SourcePrices, "log.ai.*.usage.cost"} {
		r := moneyRecord(t, from, nil, nil)
		all, err := r.SettlementsOf(&Use{Actual: 300, Call: Used{Model: "gpt-4o", Prompt: 5, Completion: 2}}, false)
		require.NoError(t, err)
		assert.Equal(t, []int64{7, 7}, []int64{all[0].Actual, all[1].Actual}, from)
		assert.True(t, all[0].Call != nil && all[1].Call == nil, "%s: one has the call", from)
		all, err = r.SettlementsOf(&Use{Actual: 300, Call: Used{Model: "foreign", Prompt: 5}}, false)
		require.NoError(t, err)
		assert.True(t, all[0].Outcome == Unmeasured && r.cost(0, all[0]) == 20, "%s: the price is unknown", from)
	}
}

func TestTheCallOfARequestIsReadAndReportedOnce(t *testing.T) {
	answer := settle.Answer{Status: 200, Source: settle.SourceService, Tried: true, Log: settle.ParseLog([]byte(
		`{"ai":{"a":{"meta":{"response_model":"gpt-4o"},"usage":{"prompt_tokens":5,"completion_tokens":2}}}}`))}
	one := moneyRecord(t, schema.SourcePrices, nil)
	many := moneyRecord(t, schema.SourcePrices, &schema.Match{Provider: "p"}, nil, nil, nil, nil)
	calls := 0
	for i, s := range many.Measure(&answer, false) {
		assert.Equal(t, i > 0, s.Outcome == Measured && s.Actual == 7, "bound %d is measured", i)
		if s.Call != nil {
			calls++
		}
	}
	assert.Equal(t, 1, calls)
	allocations := func(r *Record) float64 { return testing.AllocsPerRun(10, func() { r.Measure(&answer, false) }) }
	reading := testing.AllocsPerRun(10, func() { one.Calls.Call(&answer) })
	// The pools of the race detector vary, by few.
	assert.Less(t, allocations(many), allocations(one)+reading/2, "allocations")
}
