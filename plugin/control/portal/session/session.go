// Package session keeps who is signed in to the portal in sealed cookies, so that several processes with one key serve
// the same sessions and none keeps a table of them.
//
// A [Jar] seals values with AES-GCM: a browser can neither read nor change them, and a value of one cookie is not valid
// as another. Over TLS its cookies have the prefix __Host- and Secure. Over plain HTTP they are set only where the
// connection and the host name are of this machine, without either.
//
// [Sessions] adds what a session is: an id that is new at every sign-in, an idle timeout, an absolute one, and
// sign-out, which a process remembers for as long as a copy of the cookie could be used.
//
// What the caller may do is not decided here: the session of a token carries its secret, and package portal checks it
// again with every request.
package session

import (
	"crypto/rand"
	"maps"
	"net/http"
	"sync"
	"time"
)

const (
	// sessionCookie is the name of the cookie of a session, before its prefix.
	sessionCookie = "ratelimit_session"
	// Absolute bounds a session, however much it is used.
	Absolute = 12 * time.Hour
	// DefaultIdle is how long a session lasts without a request.
	DefaultIdle = 30 * time.Minute
	// reissue is how old a cookie is before it is issued again with a later end.
	reissue = time.Minute
)

// Session is what a browser carries of somebody who is signed in. Either Secret is set, or the name, role and org.
type Session struct {
	ID     string `json:"id"`
	Secret string `json:"s,omitempty"` // of a token, which is checked with every request
	Name   string `json:"n,omitempty"` // of somebody signed in by another system
	Role   string `json:"r,omitempty"`
	Org    string `json:"o,omitempty"`
	Start  int64  `json:"b"`  // Unix seconds
	Seen   int64  `json:"at"` // when the cookie was issued, in Unix seconds
}

// ends returns when the session ends at the latest.
func (s *Session) ends() time.Time { return time.Unix(s.Start, 0).Add(Absolute) }

// Sessions starts, finds and ends sessions. It is safe for concurrent use. Create it with New.
type Sessions struct {
	jar  *Jar
	idle time.Duration

	mu    sync.Mutex
	ended map[string]time.Time // when every copy of its cookie has run out, by the id of a session that was ended
}

// New returns the sessions whose cookies are in a Jar. Zero is DefaultIdle.
func New(jar *Jar, idle time.Duration) *Sessions {
	if idle <= 0 {
		idle = DefaultIdle
	}
	return &Sessions{jar: jar, idle: min(idle, Absolute), ended: map[string]time.Time{}}
}

// Start starts a session with a new id, which ends the session that the browser had. The error is ErrPlain where
// cookies are not safe.
func (s *Sessions) Start(w http.ResponseWriter, r *http.Request, who Session) error {
	now := s.jar.now()
	s.forget(r)
	who.ID, who.Start = rand.Text(), now.Unix()
	return s.issue(w, r, who, now)
}

// issue sets the cookie of a session, which lasts for the idle timeout.
func (s *Sessions) issue(w http.ResponseWriter, r *http.Request, who Session, now time.Time) error {
	who.Seen = now.Unix()
	return s.jar.Put(w, r, sessionCookie, who, min(s.idle, who.ends().Sub(now)))
}

// Resume returns the session of a request, or false if it has none. It issues the cookie again, at most once a minute,
// so that the idle timeout begins anew.
func (s *Sessions) Resume(w http.ResponseWriter, r *http.Request) (Session, bool) {
	who, ok := s.Read(r)
	if !ok {
		return Session{}, false
	}
	if now := s.jar.now(); now.Sub(time.Unix(who.Seen, 0)) >= reissue {
		if err := s.issue(w, r, who, now); err != nil {
			return Session{}, false
		}
	}
	return who, true
}

// Read returns the session of a request, or false if it has none, and leaves its timeouts as they are.
func (s *Sessions) Read(r *http.Request) (who Session, ok bool) {
	now := s.jar.now()
	if !s.jar.Get(r, sessionCookie, &who) || !now.Before(who.ends()) ||
		!now.Before(time.Unix(who.Seen, 0).Add(s.idle)) || s.hasEnded(who, now) {
		return Session{}, false
	}
	return who, true
}

// End ends the session of a request, also for copies of its cookie, and has the browser delete the cookie.
func (s *Sessions) End(w http.ResponseWriter, r *http.Request) {
	s.forget(r)
	s.jar.Delete(w, r, sessionCookie)
}

// forget ends the session of a request, for as long as a copy of its cookie could be used. A request in progress may
// issue the cookie once more, so that is a little longer than the idle timeout.
func (s *Sessions) forget(r *http.Request) {
	who, ok := s.Read(r)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.jar.now()
	maps.DeleteFunc(s.ended, func(_ string, until time.Time) bool { return !until.After(now) })
	s.ended[who.ID] = now.Add(s.idle + reissue)
}

// hasEnded reports whether a session was ended.
func (s *Sessions) hasEnded(who Session, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended[who.ID].After(now)
}
