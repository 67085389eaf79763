package redis

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// recordsOf opens the records of a namespace in the Redis of a block.
func recordsOf(t *testing.T, block schema.Redis, namespace string) *Records {
	t.Helper()
	s, release, err := NewRegistry(quiet, nil).Open(block)
	require.NoError(t, err)
	t.Cleanup(release)
	return s.Records(namespace)
}

// add adds a record, and reports whether there was none.
func add(t *testing.T, r *Records, key, record string, ttl time.Duration) bool {
	t.Helper()
	present, err := r.Swap(t.Context(), key, nil, []byte(record), ttl)
	require.NoError(t, err)
	return present == nil
}

// swap replaces a record, and reports whether it was the old one.
func swap(t *testing.T, r *Records, key, old, next string, ttl time.Duration) bool {
	t.Helper()
	present, err := r.Swap(t.Context(), key, []byte(old), []byte(next), ttl)
	require.NoError(t, err)
	return string(present) == old
}

// expectRecord checks the record of a key; "": there is none.
func expectRecord(t *testing.T, r *Records, key, want string) {
	t.Helper()
	if got, err := r.Get(t.Context(), key); err != nil || string(got) != want || (got != nil) != (want != "") {
		t.Errorf("the record of %s is %q, %v, want %q", key, got, err, want)
	}
}

func TestARecordIsAddedOnceReplacedIfItIsTheOldOneAndTakenOnce(t *testing.T) {
	server, nodes := redistest.Single(t), covering(t, 0)
	for name, block := range map[string]schema.Redis{"single": at(server, true), "cluster": among(nodes, true)} {
		t.Run(name, func(t *testing.T) {
			r := recordsOf(t, block, "default")
			for i := range 20 { // in slots of all masters
				key := fmt.Sprintf("id %d", i)
				require.True(t, add(t, r, key, "a\r\n\x00", time.Hour), "a new record")
				present, err := r.Swap(t.Context(), key, nil, []byte("b"), time.Hour)
				if string(present) != "a\r\n\x00" || err != nil {
					t.Fatalf("a second record: %q, %v, want the first", present, err)
				}
				require.False(t, swap(t, r, key, "b", "c", 0), "another record was replaced")
				require.True(t, swap(t, r, key, "a\r\n\x00", "c", 0), "the old record was not replaced")
				expectRecord(t, r, key, "c")
				var got atomic.Int64
				err = atOnce(4, 1, func() error {
					record, err := r.Swap(t.Context(), key, []byte("c"), nil, 0)
					if bytes.Equal(record, []byte("c")) {
						got.Add(1)
					}
					return err
				})
				require.True(t, err == nil && got.Load() == 1, "%d of 4 callers got the record, %v", got.Load(), err)
				expectRecord(t, r, key, "")
				require.False(t, swap(t, r, key, "c", "d", 0), "no record was replaced")
				expectRecord(t, r, key, "")
			}
		})
	}
}

func TestARecordExpiresAndASwapProlongsItOnlyIfItSaysSo(t *testing.T) {
	server := redistest.Single(t)
	client := server.Client(t)
	r := recordsOf(t, at(server, true), "prod")
	const key = "rl:prod:{r=x%7D%3A}"
	add(t, r, "x}:", "old", time.Hour)
	ttl := client.PTTL(t.Context(), key).Val()
	if ttl <= 0 || ttl > time.Hour {
		t.Fatalf("the keys are %q, the TTL is %v", client.Keys(t.Context(), "*").Val(), ttl)
	}
	must(t, client, "pexpire", key, (10 * time.Minute).Milliseconds())
	require.True(t, swap(t, r, "x}:", "old", "new", 0))
	if ttl := client.PTTL(t.Context(), key).Val(); ttl <= 0 || ttl > 10*time.Minute {
		t.Errorf("the TTL after a swap is %v", ttl)
	}
	require.True(t, swap(t, r, "x}:", "new", "last", 30*time.Minute))
	if ttl := client.PTTL(t.Context(), key).Val(); ttl <= 10*time.Minute || ttl > 30*time.Minute {
		t.Errorf("the TTL after a swap for 30 minutes is %v", ttl)
	}
	expectRecord(t, recordsOf(t, at(server, true), "other"), "x}:", "")
}

func TestOneCallOfARecordIsOneScriptOfCommandsThatBucketsNeedToo(t *testing.T) {
	server := redistest.Single(t)
	client := server.Client(t)
	must(t, client, "acl", "setuser", "kong", "on", ">hunter2", "~rl:*", "+evalsha", "+script|load", "+set", "+get",
		"+del")
	block := at(server, false)
	block.Username, block.Password = "kong", "hunter2"
	r := recordsOf(t, block, "default")
	expectRecord(t, r, "k", "") // loads the script
	must(t, client, "config", "resetstat")
	require.True(t, add(t, r, "k", "a", time.Hour))
	require.True(t, swap(t, r, "k", "a", "b", 0))
	require.True(t, swap(t, r, "k", "b", "c", time.Minute))
	require.True(t, swap(t, r, "k", "c", "", 0))
	if got := calls(t, client); got["evalsha"] != 4 || got["eval"]+got["script|load"] != 0 {
		t.Errorf("four calls are %v", got)
	}
}

func TestARecordThatIsOutOfReachFailsWithItsOutcome(t *testing.T) {
	server := redistest.Single(t)
	block := at(server, false)
	block.ReadTimeout = 50
	r := recordsOf(t, block, "default")
	await.That(t, "a call in time, which loads the script", func() bool {
		_, err := r.Get(t.Context(), "k")
		return err == nil
	})
	take := func(r *Records, when string, mayHaveRun bool) {
		t.Helper()
		_, err := r.Swap(t.Context(), "k", []byte("a"), nil, 0)
		var outcome interface{ MayHaveRun() bool }
		if !errors.As(err, &outcome) || outcome.MayHaveRun() != mayHaveRun {
			t.Errorf("%s: %v, want an error that may have run: %t", when, err, mayHaveRun)
		}
	}
	server.Hang(t)
	take(r, "a server that hangs", true)
	server.Resume(t)
	server.Kill()
	// With more time: a machine that stalls for 50 ms would leave none to see that nothing listens.
	take(recordsOf(t, at(server, false), "default"), "a server that is away", false)
}

func TestARecordIsBesideTheBucketsOfItsNamespace(t *testing.T) {
	server := redistest.Single(t)
	add(t, recordsOf(t, at(server, true), "default"), "k", "record", time.Minute)
	if keys := server.Client(t).Keys(t.Context(), "*").Val(); len(keys) != 1 || keys[0] != "rl:default:{r=k}" {
		t.Errorf("the keys are %q", keys)
	}
}

func TestFingerprintsDifferWhereTheDataDoes(t *testing.T) {
	block := schema.Redis{Host: "redis.internal", Port: 6379, Username: "kong", Password: "secret", ReadTimeout: 50}
	database, host, cluster := block, block, block
	database.Database, host.Host = 1, "other.internal"
	cluster.ClusterNodes = []schema.RedisClusterNode{{IP: "10.0.0.1", Port: 6379}}
	seen := map[string]string{}
	for name, r := range map[string]*Records{
		"same":      recordsOf(t, block, "default"),
		"namespace": recordsOf(t, block, "other"),
		"database":  recordsOf(t, database, "default"),
		"host":      recordsOf(t, host, "default"),
		"cluster":   recordsOf(t, cluster, "default"),
	} {
		if other, ok := seen[r.Fingerprint()]; ok || len(r.Fingerprint()) != 16 {
			t.Errorf("%s has the fingerprint %q of %q", name, r.Fingerprint(), other)
		}
		seen[r.Fingerprint()] = name
	}
	again := block
	again.Username, again.Password, again.ReadTimeout = "other", "changed", 100
	if got := recordsOf(t, again, "default").Fingerprint(); seen[got] != "same" {
		t.Errorf("another user and timeout make the fingerprint that of %q", seen[got])
	}
}
