//go:build !nokafka

package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events"
)

// A producer that was closed leaves no goroutine behind.
func TestMain(m *testing.M) { leaktest.Main(m) }

const topic = "ratelimit.denials"

// world is a Kafka of three brokers in the memory of the test, and a producer of one topic in it. It must be made in a
// bubble of synctest, whose clock then measures all times of both.
type world struct {
	t        *testing.T
	cluster  *kfake.Cluster
	network  *kfake.VirtualNetwork
	producer *Producer
}

func newWorld(t *testing.T, more ...kfake.Opt) *world {
	t.Helper()
	w := &world{t: t, network: &kfake.VirtualNetwork{}}
	w.start(append([]kfake.Opt{kfake.SeedTopics(4, topic)}, more...)...)
	w.producer = w.newProducer()
	return w
}

// start starts the brokers.
func (w *world) start(more ...kfake.Opt) {
	w.t.Helper()
	cluster, err := kfake.NewCluster(
		append([]kfake.Opt{kfake.NumBrokers(3), kfake.Ports(9092, 9093, 9094), kfake.ListenFn(w.network.Listen)}, more...)...)
	require.NoError(w.t, err)
	w.cluster = cluster
	w.t.Cleanup(cluster.Close)
}

func (w *world) newProducer() *Producer {
	w.t.Helper()
	p, err := New(Options{Brokers: []string{"127.0.0.1:9092"}, dial: w.network.DialContext}, topic)
	require.NoError(w.t, err)
	w.t.Cleanup(p.Close)
	return p
}

// send sends a batch, for at most a time.
func (w *world) send(patience time.Duration, batch []events.Event) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	return w.producer.Send(ctx, batch)
}

// sendAll sends a batch until all is stored or rejected, as its users do.
func (w *world) sendAll(batch []events.Event) (rejected []events.Event) {
	w.t.Helper()
	for range 100 {
		err := w.send(10*time.Second, batch)
		if err == nil {
			return rejected
		}
		retry, never := w.unsent(err).Left()
		for _, i := range never {
			rejected = append(rejected, batch[i])
		}
		var left []events.Event
		for _, i := range retry {
			left = append(left, batch[i])
		}
		if batch = left; len(batch) == 0 {
			return rejected
		}
		time.Sleep(time.Second)
	}
	w.t.Fatalf("%d events are still not stored", len(batch))
	return nil
}

func (w *world) unsent(err error) *Unsent {
	w.t.Helper()
	var u *Unsent
	require.True(w.t, errors.As(err, &u), "error is %v, want an Unsent", err)
	return u
}

// stored returns all records of the topic, by partition and offset.
func (w *world) stored() (all []*kgo.Record) {
	w.t.Helper()
	want := int64(0)
	for _, partition := range w.cluster.PartitionInfos(topic) {
		want += partition.HighWatermark
	}
	consumer, err := kgo.NewClient(kgo.SeedBrokers("127.0.0.1:9092"), kgo.Dialer(w.network.DialContext),
		kgo.ConsumeTopics(topic), kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), kgo.DisableClientMetrics())
	require.NoError(w.t, err)
	defer consumer.Close()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	for int64(len(all)) < want {
		fetched := consumer.PollFetches(ctx)
		require.NoError(w.t, fetched.Err(), "%d of %d records", len(all), want)
		all = append(all, fetched.Records()...)
	}
	return all
}

// wantOnce fails the test unless each event is stored once, those of a tenant in order.
func (w *world) wantOnce(batch []events.Event) {
	w.t.Helper()
	order := map[string][]string{}
	for _, r := range w.stored() {
		id, _, _ := strings.Cut(strings.SplitN(string(r.Value), `"id":"`, 2)[1], `"`)
		order[string(r.Key)] = append(order[string(r.Key)], id)
	}
	want := map[string][]string{}
	for _, e := range batch {
		want[e.Tenant] = append(want[e.Tenant], e.ID)
	}
	assert.Equal(w.t, fmt.Sprint(want), fmt.Sprint(order), "what is stored")
}

// batchOf returns n events of three tenants.
func batchOf(n int) []events.Event {
	all := make([]events.Event, n)
	for i := range all {
		all[i] = event(fmt.Sprint("e-", i), []string{"acme", "globex", "initech"}[i%3])
	}
	return all
}

func event(id, tenant string) events.Event {
	return events.Event{
		ID: id, Source: events.NodeSource("gw-1"), Type: events.Denial, Time: time.Now(), Tenant: tenant,
		Data: []byte(`{"count":3}`),
	}
}
