package policysync

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/logtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/redis"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// mirrorIn returns the records of a Redis, as a user of it; "": the default one.
func mirrorIn(t *testing.T, server *redistest.Server, user string) Mirror {
	t.Helper()
	store, release, err := redis.NewRegistry(slog.New(slog.DiscardHandler), nil).Open(schema.Redis{
		Host: server.Host, Port: int64(server.Port), Username: user, Password: user,
		ConnectTimeout: 30_000, SendTimeout: 30_000, ReadTimeout: 30_000,
	})
	require.NoError(t, err)
	t.Cleanup(release)
	return store.Records("default")
}

// mirroring starts a node with a mirror.
func mirroring(t *testing.T, o Options, m Mirror) (*Sync, *logtest.Text) {
	t.Helper()
	log := new(logtest.Text)
	o.Log = slog.New(slog.NewTextHandler(log, nil))
	s, err := New(o)
	require.NoError(t, err)
	began := time.Now()
	s.Mirror(m)
	s.Load()
	assert.Less(t, time.Since(began), mirrorTime, "the start waits for Redis")
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return s, log
}

// awaitSource waits until rows of a version and source are in force.
func awaitSource(t *testing.T, s *Sync, log *logtest.Text, source string, version int64) {
	t.Helper()
	await.That(t, source+" has the rows in force\n"+log.String(), func() bool {
		return s.Stats().Source == source && s.Stats().Version == version
	})
}

// nowhere is a Postgres that is away.
var nowhere = Options{Source: Source{DSN: "postgres://127.0.0.1:1/none?sslmode=disable"}}

// versioned returns a snapshot of a version, with a reason.
func versioned(t *testing.T, version int64, reason string) *policy.Snapshot {
	t.Helper()
	ban := schema.Override{Kind: schema.KindBan, Tenant: "acme", Permanent: true, Author: "ann", Reason: reason}
	return built(t, policy.Rows{Version: version, Overrides: []policy.Override{{ID: 1, Override: ban}}})
}

// set sets the copy of a node's database, and returns its key.
func set(t *testing.T, s *Sync, m Mirror, value []byte) string {
	t.Helper()
	key, old, err := s.getMirrored(t.Context(), m)
	require.NoError(t, err)
	_, err = m.Swap(t.Context(), key, old, value, time.Hour)
	require.NoError(t, err)
	return key
}

func TestANodeWithoutPostgresUsesTheCopyInRedisUntilPostgresAnswers(t *testing.T) {
	postgres, server := pgtest.Start(t), redistest.Single(t)
	o, m := Options{Source: Source{DSN: postgres.Database(t)}}, mirrorIn(t, server, "")
	pgtest.Exec(t, pgtest.Pool(t, o.Source.DSN), `INSERT INTO rate_limiter.overrides
		(kind, tenant, permanent, reason, author) VALUES ('ban', 'acme', true, 'a test', 'ann')`)
	server.Hang(t) // delays no rows
	first, log := mirroring(t, o, m)
	awaitSource(t, first, log, FromPostgres, 1)
	server.Resume(t)
	await.That(t, "the copy is there", func() bool { return server.Client(t).DBSize(t.Context()).Val() == 1 })
	postgres.Stop(t)
	fresh, log := mirroring(t, o, m)
	awaitSource(t, fresh, log, FromRedis, 1)
	log.Await(t, "source=redis version=1 rows=1")
	if s := fresh.Stats(); !s.Mirrored || s.Rows != 1 {
		t.Errorf("%+v\n%s", s, log)
	}
	foreign, log := mirroring(t, Options{Source: Source{DSN: postgres.DSN("other")}}, m)
	log.Await(t, "Redis has no copy of the policies")
	assert.Nil(t, foreign.Snapshot(), "a node of another database uses the copy")

	// An older file gives way to the copy, and the copy to Postgres, whatever its version.
	o.Dir = t.TempDir()
	require.NoError(t, writeFile((&Sync{options: o}).path(), versioned(t, 3, "filed"), time.Now()))
	set(t, first, m, encoded(t, versioned(t, 9, "copied")))
	late, log := mirroring(t, o, m)
	awaitSource(t, late, log, FromRedis, 9)
	assert.Equal(t, 1, log.Count("source=disk version=3"), "the file was not used first:\n%s", log)
	postgres.Start(t)
	awaitSource(t, late, log, FromPostgres, 1)
}

func TestADamagedForeignOrHugeCopyIsIgnoredAndLogged(t *testing.T) {
	server := redistest.Single(t)
	m := mirrorIn(t, server, "")
	whole := encoded(t, versioned(t, 5, "copied"))
	flipped := bytes.Clone(whole)
	flipped[len(flipped)/2] ^= 4
	zipped := func(text string) []byte {
		var to bytes.Buffer
		out := gzip.NewWriter(&to)
		_, err := out.Write([]byte(text))
		require.NoError(t, errors.Join(err, out.Close()))
		return to.Bytes()
	}
	for why, value := range map[string][]byte{
		"cut short": whole[:len(whole)/2], "or damaged": flipped, "it has format 5": zipped("{\"Format\": 5}\n"),
		"more than 4194304 bytes": make([]byte, maxMirrored+1), "no file of": []byte("{}"),
		"67108864 when":  zipped(strings.Repeat(" ", maxMirroredText+1)),
		"more rows than": zipped("{\"Format\": 4}\n{\"Tenant\": {}}\n" + strings.Repeat("\n", maxMirroredText/2)),
	} {
		key := set(t, &Sync{options: nowhere}, m, value)
		s, log := mirroring(t, nowhere, m)
		line := log.Await(t, "in Redis is ignored")
		if s.Snapshot() != nil || log.Count("in Redis is ignored") != 1 || !strings.Contains(log.String(), why) {
			t.Errorf("want %q in %q", why, line)
		}
		require.NoError(t, s.writeMirror(t.Context(), m, new(mirrorState), versioned(t, 1, "whole"), time.Now()))
		now, err := m.Get(t.Context(), key)
		assert.EqualValues(t, 1, mirroredVersion(now), "the damaged copy stays: %v", err)
	}
}

func TestNoOlderVersionReplacesANewerCopyAndTheSameOneIsRenewed(t *testing.T) {
	server := redistest.Single(t)
	client, m := server.Client(t), mirrorIn(t, server, "")
	s := &Sync{options: nowhere}
	write := func(version int64, reason string) error {
		return s.writeMirror(t.Context(), m, new(mirrorState), versioned(t, version, reason), time.Now())
	}
	var writers sync.WaitGroup
	for version := range int64(8) {
		writers.Go(func() { assert.NoError(t, write(version+1, "a test")) })
	}
	writers.Wait()
	require.NoError(t, write(8, "a test"))
	key, _, err := s.getMirrored(t.Context(), m)
	require.NoError(t, err)
	key = "rl:default:{r=" + key + "}"
	copied := client.Get(t.Context(), key).Val()
	client.PExpire(t.Context(), key, time.Minute)
	require.NoError(t, write(7, "older"))
	assert.LessOrEqual(t, client.PTTL(t.Context(), key).Val(), time.Minute, "an older version renews the copy")
	require.NoError(t, write(8, "the same"))
	assert.Greater(t, client.PTTL(t.Context(), key).Val(), mirrorTTL-time.Hour, "the TTL is not renewed")
	noise := make([]byte, maxMirrored)
	_, _ = rand.Read(noise)
	require.ErrorIs(t, write(9, hex.EncodeToString(noise)), errMirrorSize)
	now := client.Get(t.Context(), key).Val()
	assert.True(t, now == copied && mirroredVersion([]byte(now)) == 8, "version 8 is not there, written once")

	// A Redis that denies the key costs one log line.
	require.NoError(t, client.Do(t.Context(),
		"acl", "setuser", "kong", "on", ">kong", "~rl:default:{t=*", "+evalsha", "+script|load", "+get").Err())
	_, log := mirroring(t, nowhere, mirrorIn(t, server, "kong"))
	log.Await(t, "the copy of the policies in Redis cannot be used")
	time.Sleep(2 * retryPause) // tries again
	assert.Equal(t, 1, log.Count("in Redis cannot be used"), "%s", log)
}
