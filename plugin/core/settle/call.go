package settle

import (
	"encoding/json"
	"math/big"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Call holds what one request used of a language model.
type Call struct {
	Model, Provider    string // of the answer
	Prompt, Completion int64  // tokens
	MicroUSD           int64  // the price in millionths of a US dollar, rounded up once; 0 without a price
	Priced             bool   // the model has a price

	Outcome Outcome // Measured if the model and both numbers of tokens are known, else Unmeasured or Streamed
}

// Calls says where calls of language models are read, and what they cost. It is immutable.
type Calls struct {
	LLM   schema.LLM // its prices are those in force
	JSON  []byte     // LLM, for the record of each reservation
	Needs Needs      // what must be read of a request's end to know its call

	model, provider, prompt, completion source
}

// NewCalls compiles a record whose prices are those in force.
func NewCalls(llm schema.LLM) *Calls {
	c := &Calls{LLM: llm}
	c.JSON, _ = json.Marshal(llm) // texts and numbers: there is no error
	parse := func(from string) source {
		s := parseSource(schema.SettleSource{From: from})
		c.Needs = c.Needs.Union(s.needs)
		return s
	}
	c.model, c.provider = parse(llm.Model), parse(llm.Provider)
	c.prompt, c.completion = parse(llm.PromptTokens), parse(llm.CompletionTokens)
	return c
}

// PriceOf returns the price of the exact name of a model, else of its longest prefix; nil: it has none.
func (c *Calls) PriceOf(model string) (best *schema.ModelPrice) {
	if c == nil {
		return nil
	}
	for i := range c.LLM.Prices {
		p := &c.LLM.Prices[i]
		if p.Model == model {
			return p
		}
		if schema.MatchesModel(p.Model, model) && (best == nil || len(p.Model) > len(best.Model)) {
			best = p
		}
	}
	return best
}

// Price sets what a call costs by the prices in force: the sum of both products, rounded up once, at most MaxActual.
func (c *Calls) Price(call *Call) {
	price := c.PriceOf(call.Model)
	if call.MicroUSD, call.Priced = 0, price != nil; !call.Priced {
		return
	}
	product := func(tokens int64, price schema.Price) *big.Int {
		return new(big.Int).Mul(big.NewInt(tokens), big.NewInt(int64(price)))
	}
	const million = 1_000_000
	cost := product(call.Prompt, price.Prompt)
	cost.Add(cost, product(call.Completion, price.Completion))
	cost.Add(cost, big.NewInt(million-1)).Quo(cost, big.NewInt(million))
	if call.MicroUSD = MaxActual; cost.IsInt64() {
		call.MicroUSD = min(cost.Int64(), MaxActual)
	}
}

// Call returns the call of an answer, as far as the answer has it.
func (c *Calls) Call(a *Answer) (call Call) {
	if c == nil {
		return Call{Outcome: Unmeasured}
	}
	prompt, hasPrompt := c.prompt.read(a)
	completion, hasCompletion := c.completion.read(a)
	call = Call{
		Model: c.model.readText(a), Provider: c.provider.readText(a), Prompt: int64(prompt), Completion: int64(completion),
	}
	isWhole := float64(call.Prompt) == prompt && float64(call.Completion) == completion
	c.Price(&call)
	switch {
	case (c.prompt.isCountedByKong() || c.completion.isCountedByKong()) && a.Log.streamed():
		call.Outcome = Streamed
	case call.Model == "" || !hasPrompt || !hasCompletion || !isWhole:
		call.Outcome = Unmeasured
	}
	return call
}

// isCountedByKong reports whether the source is a number of Kong's AI plugins, which is wrong for a streamed answer.
func (s *source) isCountedByKong() bool { return s.kind == fromLog && s.path[0] == "ai" }
