package phase

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// BenchmarkEvent measures an event from the call to its return, over a socket with its driver in the same process. The
// configs ask and limit nothing; ask and answer but limit nothing; and have four limits in memory and metrics.
// BenchmarkPart measures the difference of the last two. Compare numbers of one run only.
func BenchmarkEvent(b *testing.B) {
	for _, c := range []struct {
		name, config string
		serve        func(testing.TB) *harness
	}{
		{"asks-nothing", `{"tiers":[{"name":"a"}]}`, serveComplete},
		{"nothing-limited", fourLimits("", routeScoped), func(t testing.TB) *harness { return serve(t, admitAll, nil) }},
		{"four-limits", fourLimits("", routeScoped), serveComplete},
		{"four-limits-and-pattern", fourLimits(`,"endpoint":"* /records/{id}"`, routeScoped), serveComplete},
	} {
		b.Run(c.name, func(b *testing.B) {
			h := c.serve(b)
			k := h.dial()
			k.Answers = commonAnswers()
			id := k.StartInstance(1, c.config)
			questions, writes := h.questions(), h.writes()
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, k.FastEvent(id))
			}
			b.ReportMetric(float64(h.questions()-questions)/float64(b.N), "questions/op")
			b.ReportMetric(float64(h.writes()-writes)/float64(b.N), "writes/op")
		})
	}
}

// BenchmarkPart measures the parts of an event between Kong's answer and ours, each alone, and together.
func BenchmarkPart(b *testing.B) {
	config, err := schemaOf(fourLimits("", ""))
	require.NoError(b, err)
	plan, err := resolve.FromConfig(config)
	require.NoError(b, err)
	decider, _, err := buildComplete(config, plan)
	require.NoError(b, err)
	ctx := b.Context()
	var x admit.Exchange
	answer := commonAnswers()["kong.client.get_consumer"]
	facts := fixedFacts{answer, wire.NewInterner()}
	if err := decider.Admit(ctx, &facts, &x); err != nil || len(x.Decision.Statuses) != 4 {
		b.Fatal(err, x.Decision)
	}
	d := &x.Decision
	for _, part := range []struct {
		name string
		do   func() error
	}{
		{"decode", func() error { return decodeConsumer(answer, facts.interner, &x.Request) }},
		{"identify", func() error { plan.Rules.Identify(&x.Request, &d.Identity); return nil }},
		{"resolve", func() error { plan.ResolveAt(&d.Identity, 0, &d.Resolution); return nil }},
		{"take", func() error { return decider.Buckets.Take(ctx, d.Resolution.Bounds, d.Statuses) }},
		{"combine", func() error { d.Combine(); return nil }},
		{"render", func() error { decider.Renderer.Render(d, false, &x.Response); return nil }},
		{"observe", func() error { decider.Observers[0].Observe(d); return nil }},
		{"all", func() error { return decider.Admit(ctx, &facts, &x) }},
	} {
		b.Run(part.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, part.do())
			}
		})
	}
}

// schemaOf parses a config.
func schemaOf(config string) (schema.Config, error) {
	parsed, _, err := schema.Parse([]byte(config), func(schema.Config) error { return nil })
	return parsed, err
}

// commonAnswers returns Kong's answers about a request of fourLimits.
func commonAnswers() map[string][]byte {
	return map[string][]byte{
		"kong.client.get_consumer": []byte("\x1a\x05alice\x0a\x24b32379d9-3d28-5683-a79c-72139be6e34f\x22\x04acme"),
		"kong.nginx.get_var":       []byte("\x0a\x1bGET /records/7?x=1 HTTP/1.1"),
		"kong.router.get_route":    []byte("\x22\x07records"),
	}
}

// fixedFacts implements admit.FactSource with one answer about the consumer.
type fixedFacts struct {
	consumer []byte
	interner *wire.Interner
}

func (f *fixedFacts) Read(_ context.Context, facts identity.Facts, _ *identity.Rules, req *identity.Request) error {
	req.Known |= facts
	req.Route = "records"
	return decodeConsumer(f.consumer, f.interner, req)
}
