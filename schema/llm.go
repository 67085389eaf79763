package schema

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// LLM says where the calls of language models are read, and what they cost. The zero value has the defaults of its
// paths and no prices.
//
//kong:patterns call_source {"patterns": ["^header[.][A-Za-z0-9_-]+$", "^log[.][A-Za-z0-9_.*-]+$", "^shared[.][A-Za-z0-9_.-]+$"], "err": "must be header.<Name>, log.<path> such as log.ai.*.usage.prompt_tokens, or shared.<name>"}
//kong:patterns request_source {"patterns": ["^header[.][A-Za-z0-9_-]+$", "^shared[.][A-Za-z0-9_.-]+$"], "err": "must be header.<Name> or shared.<name>, which are known when a request arrives"}
//kong:patterns price {"patterns": ["^[0-9][0-9]?[0-9]?[0-9]?[0-9]?[0-9]?$", "^1000000$", "^[0-9][0-9]?[0-9]?[0-9]?[0-9]?[0-9]?[.][0-9][0-9]?[0-9]?[0-9]?[0-9]?[0-9]?$"], "err": "must be US dollars per million tokens as a decimal text such as \"2.50\", from 0 to 1000000 with at most 6 decimals"}
type LLM struct {
	// Where the name of the model that answered is read after the response: log.<path>, header.<Name> of the response, or
	// shared.<name>. Default: log.ai.*.meta.response_model, which Kong's ai-proxy logs.
	Model string `json:"model,omitempty" kong:"required,match_any=call_source,len_max=256" default:"log.ai.*.meta.response_model"`

	// Where the name of its provider is read. Default: log.ai.*.meta.provider_name.
	Provider string `json:"provider,omitempty" kong:"required,match_any=call_source,len_max=256" default:"log.ai.*.meta.provider_name"`

	// Where the number of prompt tokens is read. Default: log.ai.*.usage.prompt_tokens.
	PromptTokens string `json:"prompt_tokens,omitempty" kong:"required,match_any=call_source,len_max=256" default:"log.ai.*.usage.prompt_tokens"`

	// Where the number of completion tokens is read. Default: log.ai.*.usage.completion_tokens.
	CompletionTokens string `json:"completion_tokens,omitempty" kong:"required,match_any=call_source,len_max=256" default:"log.ai.*.usage.completion_tokens"`

	// What names the model when a request arrives: header.<Name>, which must be listed in trusted_headers, or
	// shared.<name>, a text that another plugin has put into kong.ctx.shared. It only chooses which limits reserve: the
	// model that answers is charged. Default: none, the model is unknown until the answer.
	//
	// Empty means absent.
	RequestModel string `json:"request_model,omitempty" kong:"match_any=request_source,len_max=256"`

	// What names the provider when a request arrives, in the same way. Default: none.
	//
	// Empty means absent.
	RequestProvider string `json:"request_provider,omitempty" kong:"match_any=request_source,len_max=256"`

	// The prices of models, at most 256. Of the patterns that match a model the exact name wins, then the longest prefix.
	// A model without a price is denied where a limit settles by prices. Default: none; a database may have others.
	Prices []ModelPrice `json:"prices" kong:"required,len_max=256" default:""`
}

// ModelPrice is what a call of a model costs.
type ModelPrice struct {
	// The model: an exact name, or a prefix with a final *; * alone stands for all other models. At most 128 bytes.
	// Required.
	Model string `json:"model" kong:"required,match=^[^*]*[*]?$,len_max=128" kong_err:"must be the name of a model, or a prefix with one final *, in 1 to 128 bytes" example:"gpt-4o*"`

	// The price of a million prompt tokens in US dollars, a decimal text such as "2.50". From 0 to 1000000, with at
	// most 6 decimals. Required.
	Prompt Price `json:"prompt" kong:"required,match_any=price" unit:"USD" example:"2.50"`

	// The price of a million completion tokens in US dollars, in the same way. Required.
	Completion Price `json:"completion" kong:"required,match_any=price" unit:"USD" example:"10"`
}

// Match names the calls of language models that a limit counts.
//
//kong:check {"at_least_one_of": ["model", "provider"]}
type Match struct {
	// Only calls of this model: an exact name, or a prefix with a final *. Default: any model.
	Model string `json:"model,omitempty" kong:"as=ModelPrice.model" example:"gpt-4o*"`

	// Only calls of this provider, by its exact name. Default: any provider.
	Provider string `json:"provider,omitempty" kong:"match=^[^*]+$,len_max=128" kong_err:"must be the name of one provider, in 1 to 128 bytes; * is no wildcard here" example:"openai"`
}

const (
	// UnitUSD is the value of Limit.Unit for limits in millionths of a US dollar.
	UnitUSD = "usd"
	// SourcePrices is the source of a limit that settles to what the calls of a request cost.
	SourcePrices = "prices"
)

// MatchesModel reports whether a model has the name of a pattern, or begins with it where it ends in *.
func MatchesModel(pattern, model string) bool {
	prefix, open := strings.CutSuffix(pattern, "*")
	return model == prefix || open && strings.HasPrefix(model, prefix)
}

// Matches reports whether a call of a model and a provider matches, and whether that is known; "": the name is unknown.
// All calls match nil.
func (m *Match) Matches(model, provider string) (matches, known bool) {
	switch {
	case m == nil:
		return true, true
	case model != "" && m.Model != "" && !MatchesModel(m.Model, model),
		provider != "" && m.Provider != "" && m.Provider != provider:
		return false, true
	}
	known = (m.Model == "" || model != "") && (m.Provider == "" || provider != "")
	return known, known
}

// Equal reports whether two records are the same; nil is one of a limit that counts all calls.
func (m *Match) Equal(other *Match) bool {
	return m == other || m != nil && other != nil && *m == *other
}

// Describe returns m in words, after those of what it limits: ", for model gpt-4o*"; of nil "".
func (m *Match) Describe() string {
	if m == nil {
		return ""
	}
	return ", for " + inWords("model", m.Model, "provider", m.Provider)
}

// Price is a price in millionths of a US dollar for a million tokens. In JSON it is a decimal text of dollars: "2.5". A
// text that is no such decimal reads as -1, which no check accepts.
type Price int64

const priceDecimals = "000000"

// String returns the decimal.
func (p Price) String() string {
	if p < 0 { // no price
		return "an invalid price"
	}
	return strings.TrimRight(strings.TrimRight(fmt.Sprintf("%d.%06d", p/1_000_000, p%1_000_000), "0"), ".")
}

// MarshalJSON implements [json.Marshaler].
func (p Price) MarshalJSON() ([]byte, error) { return []byte(strconv.Quote(p.String())), nil }

// UnmarshalJSON reads a decimal, as a text or a number. null is none: it must not be taken as free.
func (p *Price) UnmarshalJSON(raw []byte) error {
	*p, _ = ParsePrice(strings.Trim(string(raw), `"`))
	return nil
}

// ParsePrice reads a decimal digit by digit: 2.5 is 2500000. After an error the price is -1.
func ParsePrice(text string) (Price, error) {
	whole, decimals, _ := strings.Cut(text, ".")
	if len(decimals) > len(priceDecimals) || text == whole+"." {
		return -1, errors.New("must have 1 to 6 digits after its point")
	}
	n, err := strconv.ParseUint(whole+(decimals + priceDecimals)[:len(priceDecimals)], 10, 62)
	if err != nil || n > 1_000_000*1_000_000 || whole == "" {
		return -1, errors.New("must be a decimal from 0 to 1000000")
	}
	return Price(n), nil
}

// AppendAmount appends an amount of a limit as people read it. Of unit usd, which counts millionths of a US dollar, it
// is in dollars with 2 to 6 decimals: 20.00 USD.
func AppendAmount(b []byte, n int64, unit string) []byte {
	if unit != UnitUSD {
		return strconv.AppendInt(b, n, 10)
	}
	if n < 0 { // a sum of refunds
		b, n = append(b, '-'), -n
	}
	const cent = 10_000
	b = fmt.Appendf(b, "%d.%02d", n/(100*cent), n/cent%100)
	if rest := n % cent; rest > 0 {
		b = bytes.TrimRight(fmt.Appendf(b, "%04d", rest), "0")
	}
	return append(b, " USD"...)
}

// Amount returns what AppendAmount appends.
func Amount(n int64, unit string) string { return string(AppendAmount(nil, n, unit)) }

// callSources returns the sources of m by their fields, the last two those of the request.
func (m LLM) callSources() [][2]string {
	return [][2]string{
		{"model", m.Model},
		{"provider", m.Provider},
		{"prompt_tokens", m.PromptTokens},
		{"completion_tokens", m.CompletionTokens},
		{"request_model", m.RequestModel},
		{"request_provider", m.RequestProvider},
	}
}

// faults returns the faults of m that Kong's schema language cannot express.
func (m LLM) faults() []Fault {
	var faults findings
	for _, source := range m.callSources() {
		faults.addProblem(docpath.Member("llm", source[0]), pathProblem(source[1]))
	}
	first := map[string]int{}
	for i, price := range m.Prices {
		if at, ok := first[price.Model]; ok && price.Model != "" {
			faults.add(docpath.Item("llm.prices", i)+".model", "is the model of llm.prices[%d] too: %q", at,
				docpath.Shorten(price.Model))
			continue
		}
		first[price.Model] = i
	}
	return faults
}

// callFaults returns the faults of a limit that counts calls or money.
func (l LocatedLimit) callFaults() []Fault {
	var faults findings
	if l.Unit != UnitUSD && l.Settle != nil && slices.ContainsFunc(l.Settle.Sources, isPrices) {
		faults.add(docpath.Member(l.Path, "unit"), "must be usd beside the source prices, because such a limit is in "+
			"millionths of a US dollar")
	}
	if l.Match != nil && l.Settle == nil {
		faults.add(docpath.Member(l.Path, "match"), "needs settle beside it, because the model is known for sure only "+
			"after the answer")
	}
	return faults
}

func isPrices(s SettleSource) bool { return s.From == SourcePrices }

// callWarnings returns warnings of a limit of money that is probably not what its author expects.
func (c Config) callWarnings(l LocatedLimit) []Warning {
	if l.Unit != UnitUSD {
		return nil
	}
	var warnings findings
	if quantity := l.Limit.Limit; quantity < 1000 { // probably meant in dollars
		warnings.add(docpath.Member(l.Path, "limit"), "is %d millionths of a US dollar: for %d dollars write %d", quantity,
			quantity, quantity*1_000_000)
	}
	if l.Settle == nil && l.Cost == nil && c.CostHeader == "" && len(c.Costs) == 0 {
		warnings.add(docpath.Member(l.Path, "unit"), "is usd, and a request costs 1 millionth of a US dollar: settle charges "+
			"what it really costs")
	}
	if l.Settle != nil && l.Settle.Reserve == 0 && l.Settle.ReserveHeader == "" && l.Cost == nil {
		warnings.add(docpath.Member(l.Path, "settle.reserve"), "is missing, so a request reserves 1 millionth of a US "+
			"dollar, and those that are in flight at once can overspend: reserve what a typical request costs")
	}
	if l.Settle != nil && len(c.LLM.Prices) == 0 && slices.ContainsFunc(l.Settle.Sources, isPrices) {
		warnings.add(docpath.Join(l.Path, "settle.sources"), "reads prices, and llm.prices has none: unless a database "+
			"has some, requests whose model is known are denied")
	}
	return warnings
}

// DefaultLLM returns the record of a config without one: the default paths and no prices.
var DefaultLLM = sync.OnceValue(func() LLM { return Config{LLM: LLM{Prices: []ModelPrice{}}}.WithDefaults().LLM })
