package spec

import (
	"encoding/json"
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// oneAnHour is a config that denies all requests of a tenant but the first of an hour.
const oneAnHour = `{tiers: [{name: enterprise, limits: [{name: hour, scope: tenant, limit: 1, window_size: 3600}]}]}`

// denialsTo is an option of start: the plugin server with its denials sent to a Kafka.
func denialsTo(broker string) func(*gateway.Options) {
	return func(o *gateway.Options) { o.Servers[0].Args = append(o.Servers[0].Args, "-kafka-brokers", broker) }
}

func TestDenialsFromBeforeKafkaWasThereReachItOnceAndInOnePartitionByTenant(t *testing.T) {
	t.Parallel()
	broker := freeport.Address(t)
	n := start(t, deck(oneAnHour), denialsTo(broker))
	n.want([]int{200, 429, 429, 429}, "/records", "apikey", "alice")

	_, port, err := net.SplitHostPort(broker)
	require.NoError(t, err)
	number, err := strconv.Atoi(port)
	require.NoError(t, err)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(number), kfake.SeedTopics(4, "ratelimit.denials"))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	n.want([]int{429, 429}, "/records", "apikey", "alice")

	consumer, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.ConsumeTopics("ratelimit.denials"))
	require.NoError(t, err)
	defer consumer.Close()
	ids, partitions, count := map[string]bool{}, map[int32]bool{}, 0
	for count < 5 {
		for _, r := range consumer.PollFetches(t.Context()).Records() {
			var e struct {
				ID, Source, Type, Subject string
				Data                      struct {
					Org, Policy string
					Count       int
				}
			}
			if err := json.Unmarshal(r.Value, &e); err != nil || string(r.Key) != "acme" || e.Subject != "acme" ||
				e.Data.Org != "acme" || e.Data.Policy != "hour" || ids[e.Source+" "+e.ID] {
				t.Errorf("%q: %s (%v), want a new event of acme", r.Key, r.Value, err)
			}
			ids[e.Source+" "+e.ID], partitions[r.Partition] = true, true
			count += e.Data.Count
		}
	}
	if count != 5 || len(partitions) != 1 {
		t.Errorf("%d events in %d partitions count %d denials, want 5 in one partition", len(ids), len(partitions), count)
	}
}
