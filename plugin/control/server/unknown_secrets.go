package server

import "time"

const (
	// unknownMemory bounds each generation of unknown secrets.
	unknownMemory = 4096
	// unknownTime is the least time for which a secret is remembered, unless more of them arrive; twice that is the most.
	// A secret exists only after its token, so a remembered one becomes valid only if the database is restored.
	unknownTime = 5 * time.Second
)

// unknownSecrets remembers secrets without a live token, so that they are not looked up again. It drops the older of
// two generations when the newer one is full or old, which bounds its memory. The zero value is empty.
type unknownSecrets struct {
	newer, older map[secretHash]struct{}
	since        time.Time // when the newer generation began
}

// add remembers a secret.
func (u *unknownSecrets) add(hash secretHash, now time.Time) {
	u.dropOld(now)
	if len(u.newer) >= unknownMemory || u.newer == nil {
		u.newer, u.older, u.since = map[secretHash]struct{}{}, u.newer, now
	}
	u.newer[hash] = struct{}{}
}

// has reports whether a secret is remembered.
func (u *unknownSecrets) has(hash secretHash, now time.Time) bool {
	u.dropOld(now)
	_, newer := u.newer[hash]
	_, older := u.older[hash]
	return newer || older
}

// dropOld drops generations that are old at an instant, and both if the clock has stepped back.
func (u *unknownSecrets) dropOld(now time.Time) {
	switch age := now.Sub(u.since); {
	case age < 0, age >= 2*unknownTime:
		u.newer, u.older, u.since = nil, nil, now
	case age >= unknownTime:
		u.newer, u.older, u.since = nil, u.newer, now
	}
}

// isUnknown reports whether a recent look-up found no live token of a secret.
func (t *tokens) isUnknown(hash secretHash) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.unknown.has(hash, t.now())
}
