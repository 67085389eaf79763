package kongplugin

import (
	"context"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kongwire"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// BenchmarkEvent is one event from the call to its return, over a socket with its driver in the same process: one that
// asks and limits nothing, one that asks and answers as the whole does but limits nothing, and the whole, with four
// limits in memory and metrics. What the last two differ by is what BenchmarkPart measures; compare within one run.
func BenchmarkEvent(b *testing.B) {
	for _, c := range []struct {
		name, config string
		serve        func(testing.TB) *harness
	}{
		{"nothing-asked", `{"tiers":[{"name":"a"}]}`, serveWhole},
		{"nothing-limited", fourLimits("", routeScoped), func(t testing.TB) *harness { return serve(t, plenty, nil) }},
		{"four-limits", fourLimits("", routeScoped), serveWhole},
		{"four-limits-and-pattern", fourLimits(`,"endpoint":"* /records/{id}"`, routeScoped), serveWhole},
	} {
		b.Run(c.name, func(b *testing.B) {
			h := c.serve(b)
			k := h.dial()
			k.Answers = commonAnswers()
			id := k.StartInstance(1, c.config)
			questions, writes := h.questions(), h.writes()
			b.ReportAllocs()
			for b.Loop() {
				if err := k.FastEvent(id); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(h.questions()-questions)/float64(b.N), "questions/op")
			b.ReportMetric(float64(h.writes()-writes)/float64(b.N), "writes/op")
		})
	}
}

// BenchmarkPart are the parts of the whole between Kong's answer and ours, each alone, and together.
func BenchmarkPart(b *testing.B) {
	config, err := schemaOf(fourLimits("", ""))
	if err != nil {
		b.Fatal(err)
	}
	snapshot, err := policy.FromConfig(config)
	if err != nil {
		b.Fatal(err)
	}
	path, _, err := whole(config, snapshot)
	if err != nil {
		b.Fatal(err)
	}
	ctx := b.Context()
	var x admit.Exchange
	answer := commonAnswers()["kong.client.get_consumer"]
	facts := ready{answer, kongwire.NewInterner()}
	if err := path.Admit(ctx, &facts, &x); err != nil || len(x.Decision.Statuses) != 4 {
		b.Fatal(err, x.Decision)
	}
	d := &x.Decision
	for _, part := range []struct {
		name string
		do   func() error
	}{
		{"decode", func() error { return decodeConsumer(answer, facts.interner, &x.Request) }},
		{"identify", func() error { snapshot.Rules.Identify(&x.Request, &d.Identity); return nil }},
		{"resolve", func() error { snapshot.ResolveAt(&d.Identity, 0, &d.Resolution); return nil }},
		{"take", func() error { return path.Buckets.Take(ctx, d.Resolution.Bounds, d.Statuses) }},
		{"combine", func() error { d.Combine(); return nil }},
		{"render", func() error { path.Renderer.Render(d, false, &x.Response); return nil }},
		{"observe", func() error { path.Observers[0].Observe(d); return nil }},
		{"all", func() error { return path.Admit(ctx, &facts, &x) }},
	} {
		b.Run(part.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := part.do(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func schemaOf(config string) (schema.Config, error) {
	parsed, _, err := schema.Parse([]byte(config), func(schema.Config) error { return nil })
	return parsed, err
}

// commonAnswers are what Kong says of a request of the common config.
func commonAnswers() map[string][]byte {
	return map[string][]byte{
		"kong.client.get_consumer": []byte("\x1a\x05alice\x0a\x24b32379d9-3d28-5683-a79c-72139be6e34f\x22\x04acme"),
		"kong.nginx.get_var":       []byte("\x0a\x1bGET /records/7?x=1 HTTP/1.1"),
		"kong.router.get_route":    []byte("\x22\x07records"),
	}
}

// ready is admit.Facts that has Kong's answer about the consumer at hand.
type ready struct {
	consumer []byte
	interner *kongwire.Interner
}

func (r *ready) Ask(_ context.Context, facts identity.Facts, _ *identity.Rules, req *identity.Request) error {
	req.Known |= facts
	req.Route = "records"
	return decodeConsumer(r.consumer, r.interner, req)
}
