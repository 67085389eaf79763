//go:build !nokafka

package kafka

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events"
)

func TestEventsAreCloudEventsByTenantAcknowledgedByAllReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var acks atomic.Int32
		w.cluster.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
			acks.Store(int32(r.(*kmsg.ProduceRequest).Acks))
			return nil, nil, false
		})
		batch := append(batchOf(100), event("weird", "a,b\nc\xff"), event("none", ""))
		require.NoError(t, w.send(time.Minute, batch))
		records := w.stored()
		if len(records) != len(batch) || acks.Load() != -1 {
			t.Errorf("%d records with acks=%d, want %d with -1, which are all", len(records), acks.Load(), len(batch))
		}
		partitions := map[string]int32{}
		for _, r := range records {
			var e struct{ Specversion, ID, Subject string }
			if err := json.Unmarshal(r.Value, &e); err != nil || e.Specversion != "1.0" || e.Subject != string(r.Key) {
				t.Errorf("%s with the key %q is no event with its tenant (%v)", r.Value, r.Key, err)
			}
			if e.ID == "weird" && e.Subject != "a,b\ufffdc\ufffd" || r.ProducerID < 0 ||
				len(r.Headers) != 1 || !strings.HasPrefix(string(r.Headers[0].Value), events.MediaType) {
				t.Errorf("%s: producer %d, headers %v", r.Value, r.ProducerID, r.Headers)
			}
			if at, seen := partitions[string(r.Key)]; seen && at != r.Partition && r.Key != nil {
				t.Errorf("%q is in the partitions %d and %d", r.Key, at, r.Partition)
			}
			partitions[string(r.Key)] = r.Partition
		}
	})
}

func TestWhatABrokerCannotDoForAWhileIsRetriedAndStoredOnce(t *testing.T) {
	for name, fault := range map[string]*kerr.Error{
		"the leader moved":                   kerr.NotLeaderForPartition,
		"the leader is not there":            kerr.LeaderNotAvailable,
		"too few replicas":                   kerr.NotEnoughReplicas,
		"stored, but by too few replicas":    kerr.NotEnoughReplicasAfterAppend, // the work happens
		"stored, but answered too late":      kerr.RequestTimedOut,              // the work happens
		"the topic may not be written":       kerr.TopicAuthorizationFailed,
		"the cluster may not be written":     kerr.ClusterAuthorizationFailed,
		"the disk of the broker has failed":  kerr.KafkaStorageError,
		"the broker does not know the topic": kerr.UnknownTopicOrPartition,
		"the broker is out of order":         kerr.UnknownServerError,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				batch := batchOf(30)
				failing := w.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Err: fault, Count: 3})
				if rejected := w.sendAll(batch); len(rejected) > 0 {
					t.Errorf("rejected %d events, want none", len(rejected))
				}
				assert.EqualValues(t, 3, failing.Hits(), "the fault was met times")
				w.wantOnce(batch)
			})
		})
	}
}

func TestWhatKafkaNeverTakesIsRejectedAndTheOthersAreStored(t *testing.T) {
	t.Run("an event above the size of a request", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			large, invalid := event("large", "acme"), event("invalid", "acme")
			large.Data = json.RawMessage(fmt.Sprintf(`{"text":%q}`, strings.Repeat("x", maxRequest)))
			invalid.Data = json.RawMessage(`[]`)
			batch := batchOf(3)
			rejected := w.sendAll([]events.Event{batch[0], large, batch[1], invalid, batch[2]})
			if len(rejected) != 2 || rejected[0].ID != "large" || rejected[1].ID != "invalid" {
				t.Errorf("rejected %v, want the large event and the invalid one", rejected)
			}
			w.wantOnce(batch)
		})
	})
	t.Run("a topic with a small max.message.bytes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Err: kerr.MessageTooLarge})
			rejected := w.sendAll([]events.Event{event("large", "acme")})
			assert.Len(t, rejected, 1)
			next := []events.Event{event("next", "acme")}
			w.sendAll(next)
			w.wantOnce(next)
		})
	})
}

func TestAnErrorSaysWhatIsWrongAndStaysTheSame(t *testing.T) {
	hang := func(w *world, key kmsg.Key) {
		w.cluster.ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
			w.cluster.KeepControl()
			return nil, nil, true // no answer
		})
	}
	for name, tt := range map[string]struct {
		fail      func(*world)
		want      string
		mayArrive bool
	}{
		"no broker listens": {func(w *world) { w.cluster.Close() }, "broker 127.0.0.1:9092: connect: ", true},
		"a broker accepts connections and never answers": {
			func(w *world) { hang(w, kmsg.ApiVersions) }, "broker 127.0.0.1:9092: ApiVersions: i/o timeout", true,
		},
		"a broker never answers to events": {func(w *world) { hang(w, kmsg.Produce) }, ": Produce: i/o timeout", true},
		"too few replicas for ever": {func(w *world) {
			w.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Err: kerr.NotEnoughReplicas, Count: -1})
		}, "no acknowledgement from Kafka", true},
		"the topic may not be written": {func(w *world) {
			w.cluster.Fault(kfake.Fault{
				Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Err: kerr.TopicAuthorizationFailed, Count: -1,
			})
		}, "TOPIC_AUTHORIZATION_FAILED", false},
		"there is no such topic": {func(w *world) {
			require.NoError(w.t, w.cluster.DeleteTopic(topic))
		}, "UNKNOWN_TOPIC_OR_PARTITION", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				tt.fail(w)
				batch := batchOf(6)
				w.send(40*time.Second, batch)
				err := w.send(10*time.Second, batch)
				again := w.send(40*time.Second, batch)
				if err == nil || again == nil || !strings.Contains(again.Error(), tt.want) {
					t.Fatalf("errors are %v and %v, want %q", err, again, tt.want)
				}
				retry, rejected := w.unsent(again).Left()
				if len(retry) != 6 || len(rejected) != 0 || w.unsent(again).MayArrive() != tt.mayArrive {
					t.Errorf("%+v, want 6 to retry", again)
				}
				closed := make(chan struct{})
				begun := time.Now()
				go func() { w.producer.Close(); close(closed) }()
				<-closed
				if waited := time.Since(begun); waited > time.Second {
					t.Errorf("Close waited for %v", waited)
				}
			})
		})
	}
}

func TestEventsThatWaitedForKafkaAreStoredOnceWhenItIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cluster.Close()
		batch := batchOf(30)
		for range 6 {
			require.Error(t, w.send(10*time.Second, batch), "sent without a broker")
		}
		w.start(kfake.SeedTopics(4, topic))
		w.sendAll(batch)
		w.wantOnce(batch)
	})
}

func TestAnAnswerThatIsLostDoublesNoEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var lost atomic.Int32
		// The answer comes after the client has given up the connection. The broker has stored the events by then.
		w.cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
			if lost.Add(1) <= 2 {
				w.cluster.SleepControl(func() { time.Sleep(time.Minute) })
			}
			return nil, nil, false
		})
		batch := batchOf(30)
		w.sendAll(batch)
		if lost.Load() < 3 {
			t.Errorf("%d requests, want one that was repeated", lost.Load())
		}
		time.Sleep(2 * time.Minute) // what slept is stored, or recognized as a double
		w.wantOnce(batch)
	})
}

func TestABatchThatIsGivenUpDoesNotStayInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cluster.Close()
		for i := range 30 {
			batch := make([]events.Event, 500)
			for k := range batch {
				batch[k] = event(fmt.Sprint(i, "-", k), "acme")
			}
			require.Error(t, w.send(time.Second, batch), "sent without a broker")
		}
		if n := w.producer.client.BufferedProduceRecords(); n > maxBuffered || len(w.producer.sent) > maxBuffered+500 {
			t.Errorf("%d events wait, %d are kept; want at most %d", n, len(w.producer.sent), maxBuffered)
		}
	})
}

func TestMakingAProducerOpensNoConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial := func(context.Context, string, string) (net.Conn, error) {
			t.Error("a connection was opened")
			return nil, net.ErrClosed
		}
		p, err := New(Options{Brokers: []string{"127.0.0.1:9092"}, dial: dial}, topic)
		require.NoError(t, err)
		synctest.Wait()
		p.Close()
	})
}
