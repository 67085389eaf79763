package session

import (
	"crypto/sha256"
	"maps"
	"slices"
	"sync"
	"time"
)

// maxEndings bounds how many ended sessions are remembered.
const maxEndings = 10_000

// owner identifies whose a session is: a token or a person.
type owner = [sha256.Size]byte

// owner returns whose the session is. A session has either a secret or the rest.
func (s *Session) owner() owner {
	return sha256.Sum256([]byte(s.Secret + "\x00" + s.Role + "\x00" + s.Org + "\x00" + s.Name))
}

// endings remembers sessions that were ended, for as long as a copy of their cookie could be used. If there are too
// many, the owner with the most of them loses all of its sessions that began before the older half of these: nothing
// that was ended comes back, and one who signs out very often ends no session of others. The zero value is empty and
// safe for concurrent use.
type endings struct {
	mu        sync.Mutex
	ended     map[string]ending // by the id of the session
	notBefore map[owner]int64   // sessions of an owner that began before it have ended, in Unix seconds
}

type ending struct {
	owner  owner
	start  int64     // of the session, in Unix seconds
	forget time.Time // when every copy of its cookie has run out
}

// add remembers a session. A request in progress may issue its cookie once more, so it is remembered for a little
// longer than the idle timeout.
func (e *endings) add(who Session, now time.Time, idle time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended == nil {
		e.ended, e.notBefore = map[string]ending{}, map[owner]int64{}
	}
	if len(e.ended) >= maxEndings {
		e.makeRoom(now)
	}
	e.ended[who.ID] = ending{who.owner(), who.Start, now.Add(idle + reissue)}
}

// makeRoom forgets what has run out, and if that is not enough the older half of the owner with the most.
func (e *endings) makeRoom(now time.Time) {
	maps.DeleteFunc(e.ended, func(_ string, at ending) bool { return !at.forget.After(now) })
	maps.DeleteFunc(e.notBefore, func(_ owner, at int64) bool { return !time.Unix(at, 0).Add(Absolute).After(now) })
	if len(e.ended) < maxEndings {
		return
	}
	starts, most := map[owner][]int64{}, owner{}
	for _, at := range e.ended {
		starts[at.owner] = append(starts[at.owner], at.start)
		if len(starts[at.owner]) > len(starts[most]) {
			most = at.owner
		}
	}
	slices.Sort(starts[most])
	before := max(e.notBefore[most], starts[most][len(starts[most])/2]+1)
	e.notBefore[most] = before
	maps.DeleteFunc(e.ended, func(_ string, at ending) bool { return at.owner == most && at.start < before })
}

// has reports whether a session was ended.
func (e *endings) has(who Session, now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	at, ok := e.ended[who.ID]
	return who.Start < e.notBefore[who.owner()] || ok && at.forget.After(now)
}
