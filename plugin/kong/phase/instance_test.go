package phase

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire/kongtest"
)

func TestAnInstanceAsksAgainForARouteThatKongDidNotName(t *testing.T) {
	h := serve(t, admitAll, nil)
	k := h.dial()
	k.Answers = kongtest.AnswersOf(t, "key-auth")
	named := k.Answers["kong.router.get_route"]
	id := k.StartInstance(1, `{"route_id":"r1",
		"tiers":[{"name":"a","limits":[{"name":"l","scope":"tenant+endpoint","limit":5,"window_size":1}]}]}`)
	for i, c := range []struct {
		answer []byte
		asks   bool
	}{{nil, true}, {named, true}, {named, false}} {
		k.Answers["kong.router.get_route"] = c.answer
		require.NoError(t, k.Event(id))
		assert.Equal(t, c.asks, slices.Contains(k.Questions, "kong.router.get_route"), "event %d asks for the route", i)
	}
}
