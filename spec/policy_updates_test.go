package spec

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// newKafka returns a Kafka with the topics of ratelimit serve, and its address.
func newKafka(t *testing.T) (cluster *kfake.Cluster, broker string) {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "policy.updates", "ratelimit.notices"))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	return cluster, cluster.ListenAddrs()[0]
}

func TestEachChangeOfAPolicyReachesKafkaThoughTheProcessThatSendsIsKilled(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	cluster, broker := newKafka(t)
	sent := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Observe: true, Count: -1})
	first := p.serve("--kafka-brokers", broker)
	first.want(http.StatusCreated, nil, http.MethodPost, "/v1/ratelimit/policies", policyOf(1000))
	require.NoError(t, sent.Wait(t.Context(), 1))
	const changes = 30
	for i := range changes {
		p.write(`UPDATE rate_limiter.policies SET "limit" = ` + strconv.Itoa(2000+i))
		if i == changes/2 {
			require.NoError(t, first.cmd.Process.Kill())
			<-first.ended
			p.serve("--kafka-brokers", broker)
		}
	}
	consumer, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.ConsumeTopics("policy.updates"))
	require.NoError(t, err)
	defer consumer.Close()
	var ids []string
	var limits []int
	for len(limits) < changes+1 {
		for _, r := range consumer.PollFetches(t.Context()).Records() {
			var e struct {
				ID   string
				Data struct {
					Kind  string
					After struct{ Limit int }
				}
			}
			require.NoError(t, json.Unmarshal(r.Value, &e))
			if e.Data.Kind == "policy" && !slices.Contains(ids, e.ID) {
				ids, limits = append(ids, e.ID), append(limits, e.Data.After.Limit)
			}
		}
	}
	if !slices.IsSorted(limits) || limits[0] != 1000 || limits[changes] != 2000+changes-1 {
		t.Errorf("the topic has the limits %d, want those of all changes in their order", limits)
	}
}
