package phase

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire/kongtest"
)

func TestExemptionsCostOnlyTheQuestionsThatTheirEntriesNeed(t *testing.T) {
	const (
		target    = "kong.nginx.get_var=request"
		ip        = "kong.client.get_forwarded_ip"
		origin    = "kong.nginx.get_var=http_origin"
		requested = "kong.nginx.get_var=http_access_control_request_method"
	)
	for more, test := range map[string]struct{ get, options []string }{
		``:                                  {[]string{getConsumer}, []string{getConsumer}},
		`,"exempt":[{"tenant":"x"}]`:        {[]string{getConsumer}, []string{getConsumer}},
		`,"exempt":[{"tag":"x"}]`:           {[]string{getConsumer}, []string{getConsumer}},
		`,"exempt":[{"cidr":"10.0.0.0/8"}]`: {[]string{getConsumer, ip}, []string{getConsumer, ip}},
		`,"exempt":[{"endpoint":"GET /x"}]`: {[]string{getConsumer, target}, []string{getConsumer, target}},
		`,"exempt_preflights":true`:         {[]string{getConsumer, target}, []string{getConsumer, target, origin, requested}},
		`,"exempt_preflights":true,"exempt":[{"cidr":"10.0.0.0/8"}]`: {
			[]string{getConsumer, ip, target},
			[]string{getConsumer, ip, target, origin, requested},
		},
	} {
		h := serveComplete(t)
		k := h.dial()
		k.Answers = kongtest.AnswersOf(t, "key-auth")
		config := fourLimits("", `,"observe_endpoint":false`+more)
		id := k.StartInstance(1, strings.Replace(config, "tenant+endpoint", "tenant", 1))
		for method, want := range map[string][]string{"GET": test.get, "OPTIONS": test.options} {
			k.Answers[target] = kongtest.Encode(t, &kongtest.String{V: method + " /records HTTP/1.1"})
			require.NoError(t, k.Event(id))
			assert.Equal(t, want, k.Questions, "%s with %s: questions", method, more)
		}
	}
}
