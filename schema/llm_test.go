package schema_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestAPriceIsReadDigitByDigit(t *testing.T) {
	for text, want := range map[string]schema.Price{
		"0": 0, "0.0": 0, "2.5": 2_500_000, "2.50": 2_500_000, "0.15": 150_000, "0.000001": 1, "007": 7_000_000,
		"1.100000": 1_100_000, "999999.999999": 999_999_999_999, "1000000": 1_000_000_000_000,
	} {
		price, err := schema.ParsePrice(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, price, text)
		again, err := schema.ParsePrice(price.String())
		assert.True(t, err == nil && again == price, "%s is written as %s", text, price)
	}
	for _, text := range []string{
		"", ".", ".5", "5.", "-1", "+1", "-0", "1e3", "0x1", "1_0", "1,5", " 1", "1 ", "NaN", "Inf", "0.0000001", "1.1000000",
		"1000000.000001", "1000001", "100000000000000000000", "٧", "1.2.3", "1.-2", "1.+2", strings.Repeat("1", 1000), "null",
	} {
		price, err := schema.ParsePrice(text)
		assert.True(t, err != nil && price < 0, "%q is read as %d", text, price)
		raw, err := json.Marshal(map[string]any{"llm": map[string]any{"prices": []any{
			map[string]any{"model": "m", "prompt": text, "completion": "1"},
		}}})
		require.NoError(t, err)
		_, _, err = schema.Parse(raw)
		assert.ErrorContains(t, err, "llm.prices[0].prompt: ", "%q in a config", text)
	}
}

func TestLimitsInMillionthsOfADollarAreWarnedOf(t *testing.T) {
	limits := func(limit string) string {
		return `{"tiers":[{"name":"t","limits":[` + limit + `]}],"on_missing_tenant":"skip"`
	}
	prices := `"scope":"tenant","window_size":60,"unit":"usd","settle":{"sources":[{"from":"prices"}],"reserve":1}`
	for text, want := range map[string]string{
		limits(`{"name":"a","limit":20,`+prices+`}`) + `,"llm":{"prices":[{"model":"*","prompt":"1","completion":"1"}]}}`:   "tiers[0].limits[0].limit: is 20 millionths of a US dollar: for 20 dollars write 20000000",
		limits(`{"name":"a","limit":2000,`+prices+`}`) + `,"llm":{}}`:                                                       "tiers[0].limits[0].settle.sources: reads prices, and llm.prices has none: unless a database has some, requests whose model is known are denied",
		limits(`{"name":"a","limit":2000,`+prices+`}`) + `,"llm":{"prices":[{"model":"*","prompt":"1","completion":"1"}]}}`: "",
	} {
		_, warnings, err := schema.Parse([]byte(text))
		require.NoError(t, err)
		var got []string
		for _, w := range warnings {
			got = append(got, w.String())
		}
		assert.Equal(t, want, strings.Join(got, "\n"), text)
	}
}
