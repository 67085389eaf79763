package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/kafka"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/outbox"
)

// publish runs what serve does to send events to a Kafka, until end is called.
func publish(t *testing.T, cluster *kfake.Cluster, keeper string, log io.Writer) (end func()) {
	t.Helper()
	s := &Settings{Keeper: database(keeper), Kafka: Kafka{
		Options:      kafka.Options{Brokers: cluster.ListenAddrs()},
		UpdatesTopic: "policy.updates", NoticesTopic: "ratelimit.notices",
	}}
	runs, err := s.newTopics(prometheus.NewRegistry(), slog.New(slog.NewTextHandler(log, nil)))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	for _, run := range runs {
		go func() { ended <- run(ctx) }()
	}
	return func() {
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
}

// consume returns the ids and data of the records of a topic by key, without doubles, once there are so many.
func consume(t *testing.T, cluster *kfake.Cluster, topic string, want int) (ids map[string][]string, data []string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics(topic))
	require.NoError(t, err)
	defer client.Close()
	ids = map[string][]string{}
	for len(data) < want {
		for _, r := range client.PollFetches(t.Context()).Records() {
			var e struct {
				ID   string
				Data json.RawMessage
			}
			require.NoError(t, json.Unmarshal(r.Value, &e))
			if tenant := string(r.Key); !slices.Contains(ids[tenant], e.ID) {
				ids[tenant], data = append(ids[tenant], e.ID), append(data, string(e.Data))
			}
		}
	}
	return ids, data
}

func TestChangesOfPoliciesReachKafkaInTheOrderOfCommits(t *testing.T) {
	server := pgtest.Granted(t)
	cluster, err := kfake.NewCluster(kfake.SeedTopics(3, "policy.updates", "ratelimit.notices"))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	// Some requests fail before Kafka stores them, and some after.
	cluster.Fault(
		kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "policy.updates", Err: kerr.NotLeaderForPartition, Count: 3},
		kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "policy.updates", Err: kerr.RequestTimedOut, Count: 3},
		kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "policy.updates", Err: kerr.TopicAuthorizationFailed, Count: 3},
	)
	operator := pgtest.Pool(t, server.RoleDSN(pgtest.Operator))
	exec := func(statement string, args ...any) {
		t.Helper()
		pgtest.Exec(t, operator, statement, args...)
	}
	end := publish(t, cluster, server.RoleDSN(pgtest.Keeper), io.Discard)
	tenants := []string{"acme", "a,b\nc =cmd", "globex"}
	const changes = 20
	for i := range changes {
		for k, tenant := range tenants {
			if i == 0 {
				exec(`INSERT INTO rate_limiter.tiers (name) VALUES ($1)`, fmt.Sprint("tier-", k))
				exec(`INSERT INTO rate_limiter.policies (name, tenant, scope, "limit", window_size)
					VALUES ('daily', $1, 'tenant', 1, 60)`, tenant)
				continue
			}
			exec(`UPDATE rate_limiter.policies SET "limit" = $2 WHERE tenant = $1`, tenant, i+1)
		}
		if i == changes/2 { // another process goes on
			end()
			end = publish(t, cluster, server.RoleDSN(pgtest.Keeper), io.Discard)
		}
	}
	ids, data := consume(t, cluster, "policy.updates", len(tenants)*(changes+1))
	end()
	for _, tenant := range tenants {
		got := ids[events.Text(tenant)]
		if len(got) != changes || !slices.IsSortedFunc(got, byNumber) {
			t.Errorf("%q has %d events %q, want %d in the order of commits", tenant, len(got), got, changes)
		}
	}
	if all := strings.Join(data, "\n"); strings.Count(all, "daily") < len(tenants)*changes {
		t.Errorf("events are\n%s", all)
	}
}

// byNumber compares ids such as audit-17 by their numbers.
func byNumber(a, b string) int {
	var left, right int
	fmt.Sscanf(a, "audit-%d", &left)
	fmt.Sscanf(b, "audit-%d", &right)
	return left - right
}

func TestNoticesHaveATopicOfTheirOwnAndDenialsOfTheOutboxHaveNone(t *testing.T) {
	keeper := pgtest.Granted(t).RoleDSN(pgtest.Keeper)
	cluster, err := kfake.NewCluster(kfake.SeedTopics(1, "policy.updates", "ratelimit.notices"))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	pool := pgtest.Pool(t, keeper)
	err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		for _, kind := range []events.Type{events.Denial, events.QuotaThreshold, events.AbuseStep} {
			err := outbox.Add(t.Context(), tx, events.Event{
				ID: string(kind), Source: events.Control, Type: kind, Time: time.Now(), Tenant: "acme", Data: []byte(`{}`),
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, err)
	end := publish(t, cluster, keeper, io.Discard)
	ids, _ := consume(t, cluster, "ratelimit.notices", 2)
	end()
	if want := []string{string(events.QuotaThreshold), string(events.AbuseStep)}; !slices.Equal(ids["acme"], want) {
		t.Errorf("the topic has %q, want %q", ids["acme"], want)
	}
}

func TestWithoutKafkaServeEndsAndTheEventsStayInPostgres(t *testing.T) {
	keeper := pgtest.Granted(t).RoleDSN(pgtest.Keeper)
	cluster, err := kfake.NewCluster(kfake.SeedTopics(1, "policy.updates", "ratelimit.notices"))
	require.NoError(t, err)
	cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		return nil, nil, true // no answer
	})
	t.Cleanup(cluster.Close)
	hangs := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Observe: true, Count: -1})
	pool := pgtest.Pool(t, keeper)
	err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return outbox.Add(t.Context(), tx, events.Event{
			ID: "a", Source: events.Control, Type: events.AbuseStep, Time: time.Now(), Data: []byte(`{}`),
		})
	})
	require.NoError(t, err)
	var log bytes.Buffer
	end := publish(t, cluster, keeper, &log)
	require.NoError(t, hangs.Wait(t.Context(), 1))
	end()
	left, err := outbox.Read(t.Context(), pool, noticesConsumer, 10)
	if err != nil || len(left) != 1 {
		t.Errorf("the outbox has %v (%v), want the event; log: %s", left, err, log.String())
	}
}

func TestKafkaNeedsTheRightsOfKeeperAndValidSettings(t *testing.T) {
	s := &Settings{Listen: "127.0.0.1:0", Kafka: Kafka{Options: kafka.Options{Brokers: []string{"k:9092"}}}}
	_, err := s.newTopics(prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "--keeper-database") {
		t.Errorf("without keeper: %v", err)
	}
	s.Kafka.SASL = "PLAIN"
	if err := s.Validate(false); err == nil || !strings.Contains(err.Error(), "kafka-sasl: give kafka-user") {
		t.Errorf("a password is missing: %v", err)
	}
}
