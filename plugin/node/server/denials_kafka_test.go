package server

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/denial"
)

// recordDenials makes the record of denials that flags want, and runs it until end is called.
func recordDenials(t *testing.T, flags ...string) (d *denials, log *strings.Builder, end func()) {
	t.Helper()
	s, err := parseSettings(flags, environment(), io.Discard)
	require.NoError(t, err)
	log = &strings.Builder{}
	d, err = newDenials(&s, "gw-1", io.Discard, slog.New(slog.NewTextHandler(log, nil)))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	return d, log, func() {
		cancel()
		assert.NoError(t, <-ended)
	}
}

// deny returns the decision that denies a request of a tenant.
func deny(tenant string) *decision.Decision {
	d := new(decision.Decision)
	d.Reset()
	d.Identity.Tenant = identity.Name{Kind: identity.Tenant, ID: tenant}
	d.Deny(decision.Banned)
	return d
}

func TestDenialsAreSentToKafkaAsCloudEvents(t *testing.T) {
	const topic = "denials.of.test"
	cluster, err := kfake.NewCluster(kfake.SeedTopics(3, topic))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	d, log, end := recordDenials(t, "-kafka-brokers", strings.Join(cluster.ListenAddrs(), ","), "-denial-topic", topic)
	tenants := []string{"acme", "globex", "a,b\nc\xff"}
	for _, tenant := range tenants {
		d.Observe(deny(tenant))
	}
	await.That(t, "the denials are written", func() bool {
		return d.Stats()[0].Written >= uint64(len(tenants))
	})
	end()
	consumer, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics(topic))
	require.NoError(t, err)
	defer consumer.Close()
	got := map[string]uint64{}
	for len(got) < len(tenants) {
		for _, r := range consumer.PollFetches(t.Context()).Records() {
			var e struct {
				Source, Type, Subject string
				Data                  struct {
					Event, Org, Reason string
					Count              uint64
				}
			}
			if err := json.Unmarshal(r.Value, &e); err != nil || e.Source != "/nodes/gw-1" ||
				e.Type != "io.github.tenant-rate-limiting.denial" || e.Data.Event != "rate_limit_denial" ||
				e.Data.Reason != "banned" || e.Subject != string(r.Key) {
				t.Errorf("%s with the key %q (%v)", r.Value, r.Key, err)
			}
			got[string(r.Key)] += e.Data.Count
		}
	}
	if got["acme"] != 1 || got["globex"] != 1 || got["a,b\ufffdc\ufffd"] != 1 {
		t.Errorf("the topic has %v, the log %s", got, log)
	}
}

func TestAtTheEndABrokerThatNeverAnswersIsNotAwaited(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var held sync.WaitGroup
	held.Go(func() {
		var open []net.Conn
		for {
			conn, err := listener.Accept()
			if err != nil {
				for _, c := range open {
					c.Close()
				}
				return
			}
			open = append(open, conn)
		}
	})
	t.Cleanup(held.Wait)
	t.Cleanup(func() { listener.Close() })
	d, log, end := recordDenials(t, "-kafka-brokers", listener.Addr().String())
	d.Observe(deny("acme"))
	end() // returns after FlushTime
	if s := d.Stats()[0]; s.Dropped[denial.Shutdown] != 1 || s.Queued != 0 ||
		!strings.Contains(log.String(), "dropped at shutdown") {
		t.Errorf("counted %+v, logged %s; want one denial dropped at shutdown", s, log)
	}
}

func TestASettingOfKafkaThatIsWrongEndsTheStartAndIsNamed(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"-kafka-brokers", "kafka-1"}, []string{"-kafka-brokers", "must be host:port"}},
		{[]string{"-denial-topic", "a b"}, []string{"-denial-topic", "must be the name of a topic"}},
		{[]string{"-kafka-tls", "on"}, []string{"kafka-brokers", "give the brokers"}},
		{
			[]string{"-kafka-brokers", "k:9092", "-kafka-sasl", "PLAIN", "-kafka-user", "u", "-kafka-password-file", "/p"},
			[]string{"kafka-sasl", "set kafka-tls to on"},
		},
	} {
		s, err := parseSettings(c.args, environment(), io.Discard)
		if err == nil {
			_, err = newDenials(&s, "gw-1", io.Discard, slog.New(slog.DiscardHandler))
		}
		for _, want := range c.want {
			assert.True(t, err != nil && strings.Contains(err.Error(), want), "%q: error is %v, want %q", c.args, err, want)
		}
	}
}
