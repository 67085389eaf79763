package session

import (
	"maps"
	"sync"
	"time"
)

// maxEndings bounds how many ended sessions are remembered.
const maxEndings = 50_000

// endings remembers sessions that were ended, for as long as a copy of their cookie could be used. If there are too
// many, all sessions that began before have ended: nothing that was ended comes back. The zero value is empty and safe
// for concurrent use.
type endings struct {
	mu        sync.Mutex
	ended     map[string]ending // by the id of the session
	notBefore int64             // sessions that began before it have ended, in Unix seconds
}

type ending struct {
	start  int64     // of the session, in Unix seconds
	forget time.Time // when every copy of its cookie has run out
}

// add remembers a session. A request in progress may issue its cookie once more, so it is remembered for a little
// longer than the idle timeout.
func (e *endings) add(who Session, now time.Time, idle time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended == nil {
		e.ended = map[string]ending{}
	}
	if len(e.ended) >= maxEndings {
		maps.DeleteFunc(e.ended, func(_ string, at ending) bool { return !at.forget.After(now) })
	}
	if len(e.ended) >= maxEndings {
		e.notBefore = now.Unix()
		maps.DeleteFunc(e.ended, func(_ string, at ending) bool { return at.start < e.notBefore })
	}
	e.ended[who.ID] = ending{who.Start, now.Add(idle + reissue)}
}

// has reports whether a session was ended.
func (e *endings) has(who Session, now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	at, ok := e.ended[who.ID]
	return who.Start < e.notBefore || ok && at.forget.After(now)
}
