package settle_test

import (
	"fmt"
	"math/big"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// calls returns where Kong's ai-proxy logs calls, with some prices in force.
func calls(prices ...schema.ModelPrice) *settle.Calls {
	llm := schema.DefaultLLM()
	llm.Prices = prices
	return settle.NewCalls(llm)
}

// chat returns the log entry of a call of ai-proxy.
func chat(model string, prompt, completion any) string {
	return fmt.Sprintf(`{"ai":{"proxy":{"meta":{"response_model":%q,"provider_name":"openai"},
		"usage":{"prompt_tokens":%v,"completion_tokens":%v,"total_tokens":7}}}}`, model, prompt, completion)
}

func TestACallCostsThePriceOfTheModelThatAnsweredRoundedUpOnce(t *testing.T) {
	r, err := settle.New(from(schema.SourcePrices), nil)
	require.NoError(t, err)
	table := calls(
		schema.ModelPrice{Model: "*", Prompt: 15_000_000, Completion: 75_000_000},
		schema.ModelPrice{Model: "gpt-4o*", Prompt: 2_500_000, Completion: 10_000_000},
		schema.ModelPrice{Model: "gpt-4o-mini*", Prompt: 150_000, Completion: 600_000},
		schema.ModelPrice{Model: "gpt-4o-mini-free"},
		schema.ModelPrice{Model: "dear", Prompt: 1_000_000_000_000, Completion: 1_000_000_000_000},
	)
	for _, test := range []struct {
		name, log string
		want      int64
		outcome   settle.Outcome
	}{
		{"the longest prefix", chat("gpt-4o-mini-2024", 1_000_000, 1_000_000), 750_000, settle.Measured},
		{"a shorter prefix", chat("gpt-4o", 1000, 100), 3500, settle.Measured},
		{"the exact name", chat("gpt-4o-mini-free", 1000, 100), 0, settle.Measured},
		{"all others", chat("claude", 1, 1), 90, settle.Measured},
		{"a fraction of a micro-USD", chat("gpt-4o-mini", 1, 0), 1, settle.Measured},
		{"two fractions, rounded up together", chat("gpt-4o-mini", 1, 1), 1, settle.Measured},
		{"no tokens", chat("gpt-4o", 0, 0), 0, settle.Measured},
		{"more than the largest", chat("dear", 1<<53, 1<<53), settle.MaxActual, settle.Measured},
		{"more than the largest, and an int64", chat("dear", 2_000_000, 0), settle.MaxActual, settle.Measured},
		{"no model", chat("", 1, 1), 0, settle.Unmeasured},
		{"half a token", chat("gpt-4o", 0.5, 1), 0, settle.Unmeasured},
		{"no usage", chat("gpt-4o", "null", "null"), 0, settle.Unmeasured},
		{"a negative number", chat("gpt-4o", -1, 1), 0, settle.Unmeasured},
		{"two plugins with two models", `{"ai":{"a":{"meta":{"response_model":"x"},"usage":{"prompt_tokens":1,
			"completion_tokens":1}},"b":{"meta":{"response_model":"y"}}}}`, 0, settle.Unmeasured},
		{"a model that is no text", `{"ai":{"a":{"meta":{"response_model":7},"usage":{"prompt_tokens":1,
			"completion_tokens":1}}}}`, 0, settle.Unmeasured},
		{"no log", ``, 0, settle.Unmeasured},
	} {
		a := answer(test.log)
		got, outcome := r.Measure(&a, table.Call(&a))
		if outcome != test.outcome || outcome == settle.Measured && got != test.want {
			t.Errorf("%s: %d, %d; want %d, %d", test.name, got, outcome, test.want, test.outcome)
		}
		if call := table.Call(&a); call.Outcome != outcome || outcome == settle.Measured && call.MicroUSD != got {
			t.Errorf("%s: the call is %+v, charged %d", test.name, call, got)
		}
	}
	a := answer(chat("claude", 1, 1))
	if _, outcome := r.Measure(&a, calls(schema.ModelPrice{Model: "gpt-4o*"}).Call(&a)); outcome != settle.Unmeasured {
		t.Errorf("a model without a price is settled as %d, want as unmeasured", outcome)
	}
	if _, outcome := r.Measure(&a, (*settle.Calls)(nil).Call(&a)); outcome != settle.Unmeasured {
		t.Errorf("without calls the outcome is %d, want unmeasured", outcome)
	}
}

func TestThePriceOfACallIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tokens, price := rapid.Int64Range(0, 1<<53), rapid.Int64Range(0, 1_000_000_000_000)
		call := settle.Call{Model: "m", Prompt: tokens.Draw(t, "prompt"), Completion: tokens.Draw(t, "completion")}
		p := schema.ModelPrice{Model: "*", Prompt: schema.Price(price.Draw(t, "price"))}
		p.Completion = schema.Price(price.Draw(t, "price of completions"))
		calls(p).Price(&call)
		micros := func(tokens int64, price schema.Price) *big.Rat {
			return new(big.Rat).Mul(big.NewRat(tokens, 1), big.NewRat(int64(price), 1_000_000))
		}
		exact := new(big.Rat).Add(micros(call.Prompt, p.Prompt), micros(call.Completion, p.Completion))
		above := new(big.Rat).Sub(big.NewRat(call.MicroUSD, 1), exact)
		if call.MicroUSD < settle.MaxActual && (above.Sign() < 0 || above.Cmp(big.NewRat(1, 1)) >= 0) ||
			call.MicroUSD == settle.MaxActual && exact.Cmp(big.NewRat(settle.MaxActual-1, 1)) <= 0 || !call.Priced {
			t.Fatalf("%+v by %+v, want %s", call, p, exact.FloatString(9))
		}
	})
}

func TestALimitThatMatchesModelsCountsTheirCallsAlone(t *testing.T) {
	log := chat("gpt-4o-mini", 3, 4)
	for _, test := range []struct {
		match   schema.Match
		log     string
		want    int64
		outcome settle.Outcome
	}{
		{schema.Match{Model: "gpt-4o*"}, log, 7, settle.Measured},
		{schema.Match{Model: "gpt-4o-mini"}, log, 7, settle.Measured},
		{schema.Match{Model: "gpt-4o"}, log, 0, settle.Measured},
		{schema.Match{Model: "GPT-4o*"}, log, 0, settle.Measured},
		{schema.Match{Provider: "openai"}, log, 7, settle.Measured},
		{schema.Match{Provider: "open"}, log, 0, settle.Measured},
		{schema.Match{Model: "*", Provider: "azure"}, log, 0, settle.Measured},
		{schema.Match{Model: "*"}, `{"ai":{"proxy":{"usage":{"total_tokens":7}}}}`, 0, settle.Unmeasured},
		{schema.Match{Provider: "openai"}, `{"ai":{"proxy":{"usage":{"total_tokens":7}}}}`, 0, settle.Unmeasured},
	} {
		r, err := settle.New(from("log.ai.*.usage.total_tokens"), &test.match)
		require.NoError(t, err)
		a := answer(test.log)
		got, outcome := r.Measure(&a, calls().Call(&a))
		assert.Equal(t, test.outcome, outcome, "%+v: the outcome", test.match)
		assert.Equal(t, test.want, got, "%+v: tokens", test.match)
	}
}

func TestAStreamedAnswerKeepsWhatKongCountsWrongly(t *testing.T) {
	stream := func(log string) string {
		return log[:len(log)-1] + `,"response":{"headers":{"content-type":"Text/Event-Stream; charset=utf-8"}},"n":5}`
	}
	prices := calls(schema.ModelPrice{Model: "*", Prompt: 1_000_000, Completion: 1_000_000})
	elsewhere := schema.DefaultLLM()
	elsewhere.PromptTokens, elsewhere.CompletionTokens, elsewhere.Prices = "shared.p", "shared.c", prices.LLM.Prices
	for _, test := range []struct {
		name, source string
		match        *schema.Match
		calls        *settle.Calls
		want         int64
		outcome      settle.Outcome
	}{
		{"tokens of Kong", "log.ai.*.usage.total_tokens", nil, nil, 0, settle.Streamed},
		{"another number of the log", "log.n", nil, nil, 5, settle.Measured},
		{"prices of tokens of Kong", "prices", nil, prices, 0, settle.Streamed},
		{"prices of tokens that another plugin counts", "prices", nil, settle.NewCalls(elsewhere), 5, settle.Measured},
		{"another model", "prices", &schema.Match{Model: "claude"}, prices, 0, settle.Measured},
	} {
		r, err := settle.New(from(test.source), test.match)
		require.NoError(t, err)
		a := answer(stream(chat("gpt-4o", 3, 4)))
		a.Shared = map[string]string{"p": "2", "c": "3"}
		got, outcome := r.Measure(&a, test.calls.Call(&a))
		if outcome != test.outcome || outcome == settle.Measured && got != test.want {
			t.Errorf("%s: %d, %d; want %d, %d", test.name, got, outcome, test.want, test.outcome)
		}
	}
}
