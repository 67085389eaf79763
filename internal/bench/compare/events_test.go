package compare

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/kafka"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/denial"
)

// topic is a sink that sends lines to Kafka, as the plugin server does.
type topic struct{ *kafka.Producer }

func (k topic) Write(ctx context.Context, batch []denial.Line) error {
	all := make([]events.Event, len(batch))
	for i, l := range batch {
		all[i] = events.Event{
			ID: l.ID, Source: events.NodeSource("bench"), Type: events.Denial, Time: l.Time, Tenant: l.Org, Data: l.Text,
		}
	}
	return k.Send(ctx, all)
}

// recordToKafka starts a record of denials whose sink is a topic of a Kafka in this process.
func recordToKafka(b *testing.B) *denial.Recorder {
	b.Helper()
	const name = "ratelimit.denials"
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(12, name))
	require.NoError(b, err)
	b.Cleanup(cluster.Close)
	producer, err := kafka.New(kafka.Options{Brokers: cluster.ListenAddrs()}, name)
	require.NoError(b, err)
	b.Cleanup(producer.Close)
	r := denial.New(denial.Options{
		Sinks: map[string]denial.Sink{"kafka": topic{producer}}, Log: slog.New(slog.DiscardHandler), Singles: 5,
		FlushTime: time.Minute,
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
		if s := r.Stats(); s.Sinks[0].Written.Denials != s.Denials {
			b.Errorf("counted %+v, want all denials written", s)
		}
	})
	return r
}

// BenchmarkEvents measures the path of BenchmarkAdmit over memory without the record of denials and with it in a topic
// of Kafka, for requests of tenants in turn that are all admitted or all denied.
func BenchmarkEvents(b *testing.B) {
	for _, tenants := range []int{1, 1000} {
		for _, outcome := range []string{"admitted", "denied"} {
			for _, recorded := range []string{"off", "on"} {
				b.Run(fmt.Sprintf("tenants=%d/outcome=%s/events=%s", tenants, outcome, recorded), func(b *testing.B) {
					list := limits(4, plenty)
					if outcome == "denied" {
						list[0].Limit, list[0].WindowSize = 1, int64(24*time.Hour/time.Second)
					}
					settings := config(b, list)
					plan, err := resolve.FromConfig(settings)
					require.NoError(b, err)
					decider := &admit.Decider{Buckets: inMemory(), Renderer: response.New(settings, nil)}
					decider.Policies.Store(plan)
					if recorded == "on" {
						decider.Observers = []admit.Observer{recordToKafka(b)}
					}
					decideInTurn(b, decider, tenants, outcome == "denied")
				})
			}
		}
	}
}

// decideInTurn decides requests of tenants in turn, after the first one of each.
func decideInTurn(b *testing.B, decider *admit.Decider, tenants int, denied bool) {
	b.Helper()
	all, x := make([]fixedFacts, tenants), new(admit.Exchange)
	for i := range all {
		all[i].Request = identity.Request{
			Consumer: identity.Consumer{CustomID: fmt.Sprint("tenant-", i)},
			Method:   "GET", Path: "/records/7", Route: "records", Headers: []string{"u_42"},
		}
		require.NoError(b, decider.Admit(context.Background(), &all[i], x))
	}
	b.ReportAllocs()
	used, i := usedCPU(b), 0
	for b.Loop() {
		i = (i + 31) % tenants
		if err := decider.Admit(context.Background(), &all[i], x); err != nil || x.Response.Denied != denied {
			b.Fatalf("denied %v: %v", x.Response.Denied, err)
		}
	}
	b.ReportMetric(float64((usedCPU(b)-used).Nanoseconds())/float64(b.N), "cpu-ns/op")
}
