package settle

import (
	"encoding/json"
	"fmt"
	"math/bits"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Call holds what one request used of a language model.
type Call struct {
	Model, Provider    string // of the answer
	Prompt, Completion int64  // tokens
	MicroUSD           int64  // the price in millionths of a US dollar, rounded up once; 0 without a price
	Priced             bool   // the model has a price
}

// Calls says where calls of language models are read, and holds the prices in force. It is immutable; nil has no
// paths and no prices.
type Calls struct {
	Named bool // by a config that has an llm record: its calls are reported

	prices                              []schema.ModelPrice
	model, provider, prompt, completion source
	needs                               Needs
	text                                json.RawMessage
}

// maxModel bounds the names of models and providers in an answer, in bytes.
const maxModel = 256

// jsonCalls is the stored form of Calls.
type jsonCalls struct {
	schema.LLM

	Named bool `json:"named,omitempty"`
}

// NewCalls compiles a record whose prices are those in force. An error names the path or price that is faulty.
func NewCalls(llm schema.LLM, named bool) (*Calls, error) {
	llm.RequestModel, llm.RequestProvider = "", "" // which only the access phase reads
	c := &Calls{Named: named, prices: llm.Prices}
	for _, field := range [...]struct {
		from string
		to   *source
	}{
		{llm.Model, &c.model}, {llm.Provider, &c.provider}, {llm.PromptTokens, &c.prompt},
		{llm.CompletionTokens, &c.completion},
	} {
		if *field.to = parseSource(schema.SettleSource{From: field.from}); !field.to.hasPath() {
			return nil, fmt.Errorf("calls cannot be read from %q", field.from)
		}
		c.needs = c.needs.Union(field.to.needs)
	}
	for _, price := range llm.Prices {
		if price.Prompt < 0 || price.Completion < 0 {
			return nil, fmt.Errorf("the price of %q is negative", price.Model)
		}
	}
	var err error
	c.text, err = json.Marshal(jsonCalls{llm, named})
	return c, err
}

// MarshalJSON implements [json.Marshaler].
func (c *Calls) MarshalJSON() ([]byte, error) { return c.text, nil }

// UnmarshalJSON reads what MarshalJSON has written.
func (c *Calls) UnmarshalJSON(text []byte) error {
	var form jsonCalls
	if err := json.Unmarshal(text, &form); err != nil {
		return err
	}
	read, err := NewCalls(form.LLM, form.Named)
	if err == nil {
		*c = *read
	}
	return err
}

// Needs returns what must be read of a request's end to know its call.
func (c *Calls) Needs() Needs {
	if c == nil {
		return Needs{}
	}
	return c.needs
}

// HasPrice reports whether a model has a price.
func (c *Calls) HasPrice(model string) bool { return c.priceOf(model) != nil }

// priceOf returns the price of the exact name of a model, else of the longest prefix; nil: it has none.
func (c *Calls) priceOf(model string) (best *schema.ModelPrice) {
	if c == nil {
		return nil
	}
	for i := range c.prices {
		p := &c.prices[i]
		if !schema.MatchesModel(p.Model, model) {
			continue
		}
		if !strings.HasSuffix(p.Model, "*") {
			return p
		}
		if best == nil || len(p.Model) > len(best.Model) {
			best = p
		}
	}
	return best
}

// Price sets what a call costs by the prices in force: the sum of both products, rounded up once, at most MaxActual.
func (c *Calls) Price(call *Call) {
	price := c.priceOf(call.Model)
	if call.MicroUSD, call.Priced = 0, price != nil; !call.Priced {
		return
	}
	const million = 1_000_000
	high, low := bits.Mul64(uint64(call.Prompt), uint64(price.Prompt))
	high2, low2 := bits.Mul64(uint64(call.Completion), uint64(price.Completion))
	low, carry := bits.Add64(low, low2, 0)
	high += high2 + carry
	low, carry = bits.Add64(low, million-1, 0)
	if high += carry; high >= million {
		call.MicroUSD = MaxActual
		return
	}
	micros, _ := bits.Div64(high, low, million)
	call.MicroUSD = int64(min(micros, MaxActual))
}

// reading is a call as far as an answer has it.
type reading struct {
	Call

	hasTokens bool // both numbers, and they are whole
	streamed  bool // Kong has counted the tokens of a streamed answer
}

// read reads the call of an answer.
func (c *Calls) read(a *Answer) (r reading) {
	if c == nil {
		return r
	}
	var hasPrompt, hasCompletion bool
	r.Model, r.Provider = c.model.readText(a), c.provider.readText(a)
	r.Prompt, hasPrompt = c.prompt.readWhole(a)
	r.Completion, hasCompletion = c.completion.readWhole(a)
	r.hasTokens = hasPrompt && hasCompletion
	r.streamed = a.Log.streamed() && (c.prompt.isCountedByKong() || c.completion.isCountedByKong())
	c.Price(&r.Call)
	return r
}

// cost returns what the call costs.
func (r *reading) cost() (microUSD int64, outcome Outcome) {
	switch {
	case r.streamed:
		return 0, Streamed
	case !r.Priced || r.Model == "" || !r.hasTokens:
		return 0, Unmeasured
	}
	return r.MicroUSD, Measured
}

// Call returns what a request used, or nil if that is unknown or the calls are not reported.
func (c *Calls) Call(a *Answer) *Call {
	if c == nil || !c.Named {
		return nil
	}
	r := c.read(a)
	if r.Model == "" || !r.hasTokens || r.streamed {
		return nil
	}
	return &r.Call
}

// readText returns the text of the source, or "" without a valid one.
func (s *source) readText(a *Answer) (text string) {
	switch s.kind {
	case fromHeader:
		text = a.Headers[s.name]
	case fromShared:
		text = a.Shared[s.name]
	default:
		text = a.Log.text(s.path)
	}
	if len(text) > maxModel {
		return ""
	}
	return text
}

// readWhole returns the whole number of the source, and reports whether there is one.
func (s *source) readWhole(a *Answer) (int64, bool) {
	value, ok := s.read(a)
	return int64(value), ok && value == float64(int64(value))
}

// isCountedByKong reports whether the source is a number of Kong's AI plugins, which is wrong for a streamed answer.
func (s *source) isCountedByKong() bool { return s.kind == fromLog && s.path[0] == "ai" }
