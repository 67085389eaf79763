package policysync

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Mirror is where a copy of the saved snapshot lies for nodes that start without Postgres: records in Redis. Nodes
// write it, because they alone know each Redis and namespace of the plugin configs. A record is replaced only if it is
// the one that the node has read, so no older version replaces a newer one.
type Mirror interface {
	Fingerprint() string // equal ones have the same records
	// Get returns a record, or nil.
	Get(ctx context.Context, key string) ([]byte, error)
	// Swap replaces a record if it is the old one, and returns the one that was there. nil: none.
	Swap(ctx context.Context, key string, old, next []byte, ttl time.Duration) (before []byte, err error)
}

const (
	// maxMirrored bounds a copy, and maxMirroredText what it decompresses to: others may write to Redis. In bytes.
	maxMirrored, maxMirroredText = 4 << 20, 64 << 20
	// A copy's TTL is renewed after renewAfter.
	mirrorTTL, renewAfter = 7 * 24 * time.Hour, 12 * time.Hour
	// mirrorPause is the time between writes, and retryPause after a failed call, both jittered.
	mirrorPause, retryPause = 10 * time.Second, 2 * time.Second
	// mirrorPoll is the time between looks at what is due, and mirrorTime bounds a read or write.
	mirrorPoll, mirrorTime = 100 * time.Millisecond, 5 * time.Second
)

var errMirrorSize = fmt.Errorf("it has more than %d bytes, or %d when decompressed", maxMirrored, maxMirroredText)

// mirrorState is what a node knows of one copy. stores belongs to Sync.mu, the rest to the goroutine that mirrors.
type mirrorState struct {
	stores         []Mirror // each leads to the copy
	read           bool     // it was read, or need not be
	version        int64    // the one written or found last; 0: none was found; -1: unknown
	dueAt, renewAt time.Time
	failing        bool // a call failed, and that was logged
}

// Mirror makes Run keep a copy of the snapshot in m, and use it while Postgres is away and there is no saved file or an
// older one. It does not block. The caller removes m before it closes m.
func (s *Sync) Mirror(m Mirror) (remove func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.mirrors[m.Fingerprint()]
	if state == nil {
		state = &mirrorState{version: -1}
		s.mirrors[m.Fingerprint()] = state
	}
	state.stores = append(state.stores, m)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		state.stores = slices.DeleteFunc(state.stores, func(other Mirror) bool { return other == m })
	}
}

func (s *Sync) mirrorUntil(ctx context.Context) {
	for ctx.Err() == nil {
		s.mu.Lock()
		copies := slices.Collect(maps.Values(s.mirrors))
		s.mu.Unlock()
		for _, state := range copies {
			s.mirror(ctx, state)
		}
		select {
		case <-ctx.Done():
		case <-time.After(mirrorPoll):
		}
	}
}

// mirror reads or writes a copy if that is due. It logs a failure once, until a call succeeds.
func (s *Sync) mirror(ctx context.Context, state *mirrorState) {
	var m Mirror
	s.mu.Lock()
	if len(state.stores) > 0 {
		m = state.stores[0]
	}
	source, confirmed, away := s.state.Source, s.state.confirmed, s.state.away
	s.mu.Unlock()
	bounded, cancel := context.WithTimeout(ctx, mirrorTime)
	defer cancel()
	var err error
	switch snapshot, now := s.Snapshot(), time.Now(); {
	case m == nil || now.Before(state.dueAt):
		return
	case source == FromPostgres && (snapshot.Version() > state.version || now.After(state.renewAt)):
		state.read, state.dueAt = true, now.Add(jittered(mirrorPause))
		err = s.writeMirror(bounded, m, state, snapshot, confirmed)
	case source != FromPostgres && !state.read && (snapshot == nil || away):
		state.dueAt = now.Add(jittered(retryPause))
		err = s.readMirror(bounded, m, state)
	default:
		return
	}
	if err != nil && !state.failing && ctx.Err() == nil {
		s.log.Warn("the copy of the policies in Redis cannot be used: "+
			"a start without Postgres and without saved policies would use older ones, or none", "error", err)
	}
	state.failing = err != nil
}

// getMirrored returns a copy and its key. Each database and each format has one. Nodes share it if they name the
// database by the same host, port and name: a node without Postgres knows no more of it.
func (s *Sync) getMirrored(ctx context.Context, m Mirror) (key string, data []byte, err error) {
	config, err := s.options.Source.config(nil)
	if err != nil {
		return "", nil, err
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %d %q", config.Host, config.Port, config.Database))
	key = fmt.Sprintf("policies.%d.%x", format, sum[:8])
	data, err = m.Get(ctx, key)
	return key, data, err
}

// readMirror puts the copy in force, if it can be read and no newer rows are.
func (s *Sync) readMirror(ctx context.Context, m Mirror, state *mirrorState) error {
	key, data, err := s.getMirrored(ctx, m)
	if err != nil {
		return err
	}
	if data == nil { // another node may write it yet
		if state.version < 0 {
			s.log.Info("Redis has no copy of the policies", "record", key)
		}
		state.version = 0
		return nil
	}
	state.read = true
	saved, err := Saved{}, errMirrorSize
	if len(data) <= maxMirrored {
		saved, err = decode(bytes.NewReader(data), s.options.MaxRows, maxMirroredText)
	}
	if errors.As(err, new(*http.MaxBytesError)) {
		err = errMirrorSize
	}
	if err != nil {
		s.log.Warn("the copy of the policies in Redis is ignored", "record", key, "bytes", len(data), "error", err)
		return nil
	}
	s.enforceSaved(saved, FromRedis)
	return nil
}

// writeMirror replaces no copy, an older or a damaged one, and renews the TTL of one of the same version.
func (s *Sync) writeMirror(
	ctx context.Context, m Mirror, state *mirrorState, snapshot *policy.Snapshot, confirmed time.Time,
) error {
	version := snapshot.Version()
	key, old, err := s.getMirrored(ctx, m)
	if err != nil {
		return err
	}
	next, found := old, mirroredVersion(old)
	if found < version {
		var out bytes.Buffer
		err = encode(&out, snapshot, confirmed)
		if next = out.Bytes(); err == nil && mirroredVersion(next) != version {
			err = errMirrorSize
		}
	}
	if err == nil && found <= version {
		var before []byte
		if before, err = m.Swap(ctx, key, old, next, mirrorTTL); err != nil || !bytes.Equal(before, old) {
			return err // nil: another node has written meanwhile, so the copy is read again
		}
	}
	state.version, state.renewAt = version, time.Now().Add(jittered(renewAfter))
	return err
}

// mirroredVersion returns the version of a copy, or -1 if it is missing, damaged or too large.
func mirroredVersion(data []byte) int64 {
	if len(data) > maxMirrored {
		return -1
	}
	h, lines, err := decodeHeader(bytes.NewReader(data), maxMirroredText)
	if err == nil {
		_, err = io.Copy(io.Discard, lines) // up to the checksum
	}
	if err != nil {
		return -1
	}
	return h.Version
}
