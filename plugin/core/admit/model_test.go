package admit_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
)

// modelConfig has a budget of all priced models, and a smaller one of one model, which is the nearest to its end.
func modelConfig(mode string) string {
	return `{mode: ` + mode + `, trusted_headers: [X-Model], llm: {request_model: header.X-Model,
	prices: [{model: "gpt-4o*", prompt: "2.50", completion: "10"}, {model: claude, prompt: "1", completion: "1"}]},
	tiers: [{name: paid, limits: [
	{name: all, scope: tenant, unit: usd, limit: 20000, algorithm: fixed_window, window_size: 60,
	 settle: {sources: [{from: prices}], reserve: 5000}},
	{name: of-4o, scope: tenant, unit: usd, limit: 5000, algorithm: fixed_window, window_size: 60,
	 match: {model: "gpt-4o*"}, fail_mode: closed, settle: {sources: [{from: prices}], reserve: 5000}}]}]}`
}

// chat asks for a model, and returns the exchange.
func chat(t *testing.T, decider *admit.Decider, model string) *admit.Exchange {
	t.Helper()
	request := overHTTP1(ofTier("paid", "u", "POST", "/chat"))
	request.Headers = []string{model}
	var x admit.Exchange
	require.NoError(t, decider.Admit(context.Background(), &gateway{request: request}, &x))
	return &x
}

func TestALimitOfAnotherModelNeitherDeniesNorIsShown(t *testing.T) {
	decider, _, _ := deciderOf(t, modelConfig("enforce"))
	x := chat(t, decider, "gpt-4o")
	assert.Equal(t, `"all";q=20000;qu="micro-usd";w=60,"of-4o";q=5000;qu="micro-usd";w=60`,
		x.Response.Get("RateLimit-Policy"))
	assert.Equal(t, "5000", x.Response.Get("X-RateLimit-Limit"), "the one of the model binds")
	for model, denied := range map[string]bool{"gpt-4o-mini": true, "": true, "claude": false} {
		x := chat(t, decider, model)
		assert.Equal(t, denied, x.Response.Denied, "%q is denied", model)
		if !denied {
			assert.Equal(t, `"all";q=20000;qu="micro-usd";w=60`, x.Response.Get("RateLimit-Policy"))
			assert.NotContains(t, x.Response.Get("RateLimit"), "of-4o")
			assert.Equal(t, "20000", x.Response.Get("X-RateLimit-Limit"))
		}
	}
}

func TestAModelWithoutAPriceIsDeniedOrRecordedInShadow(t *testing.T) {
	const hostile = "gpt-5\"},\x01\xff<script>"
	for _, model := range []string{"gpt-5", hostile, strings.Repeat("x", 128)} {
		decider, buckets, observed := deciderOf(t, modelConfig("enforce"))
		x := chat(t, decider, model)
		var body struct {
			Detail string
			Status int
		}
		require.NoError(t, json.Unmarshal(x.Response.Body, &body), "%q %s %s", model, x.Response.Body, read(&x.Response))
		assert.Equal(t, decision.ModelUnpriced, x.Decision.Reason)
		assert.True(t, x.Response.Denied && x.Response.Status == 400 && body.Status == 400 && buckets.takes == 0, "%q", model)
		assert.Contains(t, body.Detail, "The model '"+strings.ToValidUTF8(model, "\ufffd")[:5])
		assert.Less(t, len(body.Detail), 200)
		assert.Empty(t, x.Response.Get("Retry-After"))
		assert.Len(t, *observed, 1)
	}
	decider, _, _ := deciderOf(t, modelConfig("shadow"))
	x := chat(t, decider, "gpt-5")
	assert.True(t, !x.Response.Denied && x.Decision.ShadowDenied && x.Decision.ShadowReason == decision.ModelUnpriced)
}
