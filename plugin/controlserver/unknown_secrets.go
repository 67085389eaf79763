package controlserver

import "time"

const (
	// unknownMemory is how many secrets of no live token are remembered at once, at most twice.
	unknownMemory = 4096
	// unknownTime is how long at least they are, where no more come, and twice that at most. A secret is shown when its
	// token is made, so no new token is among them; only a database that was brought back can make one valid again.
	unknownTime = 5 * time.Second
)

// unknownSecrets are secrets of no live token, kept so that the same one is not looked up again and again. There are
// two generations: the older one is forgotten when the newer one is full or old, so guesses take no more memory than
// two. The zero value has none.
type unknownSecrets struct {
	newer, older map[secretHash]struct{}
	since        time.Time // when the newer generation began
}

// add remembers a secret.
func (u *unknownSecrets) add(hash secretHash, now time.Time) {
	u.turn(now)
	if len(u.newer) >= unknownMemory || u.newer == nil {
		u.newer, u.older, u.since = map[secretHash]struct{}{}, u.newer, now
	}
	u.newer[hash] = struct{}{}
}

// has reports whether a secret is remembered.
func (u *unknownSecrets) has(hash secretHash, now time.Time) bool {
	u.turn(now)
	_, newer := u.newer[hash]
	_, older := u.older[hash]
	return newer || older
}

// turn forgets what is old at an instant, and all where the clock has stepped back.
func (u *unknownSecrets) turn(now time.Time) {
	switch age := now.Sub(u.since); {
	case age < 0, age >= 2*unknownTime:
		u.newer, u.older, u.since = nil, nil, now
	case age >= unknownTime:
		u.newer, u.older, u.since = nil, u.newer, now
	}
}

// isUnknown reports whether a secret was found to be of no live token a moment ago.
func (t *tokens) isUnknown(hash secretHash) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.unknown.has(hash, t.now())
}
