package redis

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
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
				if present, err := r.Add(t.Context(), key, []byte("a\r\n\x00"), time.Hour); present != nil || err != nil {
					t.Fatalf("a new record: %q, %v", present, err)
				}
				present, err := r.Add(t.Context(), key, []byte("b"), time.Hour)
				if string(present) != "a\r\n\x00" || err != nil {
					t.Fatalf("a second record: %q, %v, want the first", present, err)
				}
				for old, want := range map[string]bool{"b": false, "": false} {
					if swapped, err := r.Swap(t.Context(), key, []byte(old), []byte("c")); swapped != want || err != nil {
						t.Fatalf("swap %q: %t, %v", old, swapped, err)
					}
				}
				if swapped, err := r.Swap(t.Context(), key, []byte("a\r\n\x00"), []byte("c")); !swapped || err != nil {
					t.Fatalf("swap: %t, %v", swapped, err)
				}
				expectRecord(t, r, key, "c")
				var got atomic.Int64
				err = atOnce(4, 1, func() error {
					record, err := r.Take(t.Context(), key)
					if bytes.Equal(record, []byte("c")) {
						got.Add(1)
					}
					return err
				})
				require.True(t, err == nil && got.Load() == 1, "%d of 4 callers got the record, %v", got.Load(), err)
				expectRecord(t, r, key, "")
				if swapped, err := r.Swap(t.Context(), key, nil, []byte("c")); swapped || err != nil {
					t.Fatalf("swap of no record: %t, %v", swapped, err)
				}
			}
		})
	}
}

func TestAClaimedRecordIsItsClaimantsFor30SecondsAndGoneToAllOthers(t *testing.T) {
	server := redistest.Single(t)
	client := server.Client(t)
	r := recordsOf(t, at(server, true), "default")
	claim := func(claimant, record string, taken bool) {
		t.Helper()
		got, other, err := r.Claim(t.Context(), "k", claimant)
		if string(got) != record || (got != nil) != (record != "") || other != taken || err != nil {
			t.Errorf("%s gets %q, taken: %t, %v, want %q, taken: %t", claimant, got, other, err, record, taken)
		}
	}
	claim("one", "", false)
	if _, err := r.Add(t.Context(), "k", []byte("a\r\n\x00"), time.Hour); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		claim("one", "a\r\n\x00", false)
		claim("two", "", true)
		claim("on", "", true)
		claim("", "", true)
		expectRecord(t, r, "k", "")
		for name, call := range map[string]func() (bool, error){
			"take": func() (bool, error) {
				record, err := r.Take(t.Context(), "k")
				return record == nil, err
			},
			"swap": func() (bool, error) {
				swapped, err := r.Swap(t.Context(), "k", []byte("a\r\n\x00"), []byte("b"))
				return !swapped, err
			},
			"add": func() (bool, error) {
				present, err := r.Add(t.Context(), "k", []byte("b"), time.Hour)
				return present != nil, err
			},
		} {
			if ok, err := call(); !ok || err != nil {
				t.Errorf("%s of a claimed record: %t, %v", name, ok, err)
			}
		}
	}
	const key = "rl:default:{r=k}"
	if ttl := client.PTTL(t.Context(), key).Val(); ttl <= 0 || ttl > 30*time.Second {
		t.Errorf("a claimed record is kept for %v", ttl)
	}
	must(t, client, "del", key)
	claim("one", "", false)
}

func TestAClaimOfOnesOwnRecordKeepsTheClaimAlone(t *testing.T) {
	server := redistest.Single(t)
	client := server.Client(t)
	r := recordsOf(t, at(server, true), "default")
	own := func(claimant string, won, taken bool) {
		t.Helper()
		if got, other, err := r.ClaimOwn(t.Context(), "k", claimant); got != won || other != taken || err != nil {
			t.Errorf("%s wins: %t, taken: %t, %v, want %t and %t", claimant, got, other, err, won, taken)
		}
	}
	own("one", false, false)
	if _, err := r.Add(t.Context(), "k", bytes.Repeat([]byte("a"), 1000), time.Hour); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		own("one", true, false)
		own("two", false, true)
		if record, taken, err := r.Claim(t.Context(), "k", "two"); record != nil || !taken || err != nil {
			t.Errorf("another claimant gets %q, taken: %t, %v", record, taken, err)
		}
		expectRecord(t, r, "k", "")
	}
	const key = "rl:default:{r=k}"
	if size, ttl := client.StrLen(t.Context(), key).Val(), client.PTTL(t.Context(), key).Val(); size != 6 || ttl <= 0 ||
		ttl > 30*time.Second {
		t.Errorf("%d bytes are kept for %v", size, ttl)
	}
}

func TestARecordExpiresAndASwapDoesNotProlongIt(t *testing.T) {
	server := redistest.Single(t)
	client := server.Client(t)
	r := recordsOf(t, at(server, true), "prod")
	const key = "rl:prod:{r=x%7D%3A}"
	if _, err := r.Add(t.Context(), "x}:", []byte("old"), time.Minute); err != nil {
		t.Fatal(err)
	}
	ttl := client.PTTL(t.Context(), key).Val()
	if ttl <= 0 || ttl > time.Minute {
		t.Fatalf("the keys are %q, the TTL is %v", client.Keys(t.Context(), "*").Val(), ttl)
	}
	must(t, client, "pexpire", key, 1000)
	if swapped, err := r.Swap(t.Context(), "x}:", []byte("old"), []byte("new")); !swapped || err != nil {
		t.Fatal(swapped, err)
	}
	if ttl := client.PTTL(t.Context(), key).Val(); ttl <= 0 || ttl > time.Second {
		t.Errorf("the TTL after a swap is %v", ttl)
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
	if _, err := r.Add(t.Context(), "k", []byte("a"), time.Hour); err != nil {
		t.Fatal(err)
	}
	if swapped, err := r.Swap(t.Context(), "k", []byte("a"), []byte("b")); !swapped || err != nil {
		t.Fatal(swapped, err)
	}
	if record, taken, err := r.Claim(t.Context(), "k", "a"); string(record) != "b" || taken || err != nil {
		t.Fatal(string(record), taken, err)
	}
	if _, err := r.Take(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
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
	take := func(when string, mayHaveRun bool) {
		t.Helper()
		_, err := r.Take(t.Context(), "k")
		var outcome interface{ MayHaveRun() bool }
		if !errors.As(err, &outcome) || outcome.MayHaveRun() != mayHaveRun {
			t.Errorf("%s: %v, want an error that may have run: %t", when, err, mayHaveRun)
		}
	}
	server.Hang(t)
	take("a server that hangs", true)
	server.Resume(t)
	server.Kill()
	await.That(t, "a connection that cannot be opened", func() bool {
		_, err := r.Take(t.Context(), "k")
		return err != nil && strings.Contains(err.Error(), NotSent.String())
	})
	take("a server that is away", false)
}

func TestARecordIsBesideTheBucketsOfItsNamespace(t *testing.T) {
	server := redistest.Single(t)
	_, err := recordsOf(t, at(server, true), "default").Add(t.Context(), "k", []byte("record"), time.Minute)
	require.NoError(t, err)
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
