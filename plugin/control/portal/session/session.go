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
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"strings"
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

func (s *Sessions) hasEnded(who Session, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended[who.ID].After(now)
}

const (
	// KeySize is the length of the key of a Jar, in bytes.
	KeySize = 32
	// maxCookie bounds the value of a cookie, in bytes. Browsers keep no longer ones.
	maxCookie = 3800
	// hostPrefix makes browsers accept a cookie only over TLS, from this host alone.
	hostPrefix = "__Host-"
)

// ErrPlain reports that no cookie is set, because others may read the connection.
var ErrPlain = errors.New("the connection is not encrypted: open the portal over https, or on the machine itself as " +
	"http://localhost; a proxy that terminates TLS must send X-Forwarded-Proto: https")

// Jar seals values in cookies. It is safe for concurrent use. Create it with NewJar.
type Jar struct {
	seal cipher.AEAD
	now  func() time.Time
}

// sealed is the content of a cookie.
type sealed struct {
	Ends  int64           `json:"e"` // Unix seconds
	Value json.RawMessage `json:"v"`
}

// NewJar returns a Jar with a key of KeySize bytes.
func NewJar(key []byte, now func() time.Time) (*Jar, error) {
	if len(key) != KeySize {
		return nil, fmt.Errorf("the key of the portal has %d bytes: it must have %d", len(key), KeySize)
	}
	derived, err := hkdf.Key(sha256.New, key, nil, "ratelimit portal cookies", KeySize)
	if err != nil {
		return nil, fmt.Errorf("derive the key of cookies: %w", err)
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		return nil, fmt.Errorf("make the cipher of cookies: %w", err)
	}
	seal, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("make the cipher of cookies: %w", err)
	}
	return &Jar{seal: seal, now: now}, nil
}

// Check returns ErrPlain where cookies are not safe.
func (j *Jar) Check(r *http.Request) error {
	_, _, err := cookieName(r, "")
	return err
}

// Put sets a cookie with a value, which is encoded as JSON and valid for a time. The error is ErrPlain where cookies
// are not safe.
func (j *Jar) Put(w http.ResponseWriter, r *http.Request, name string, value any, life time.Duration) error {
	full, secure, err := cookieName(r, name)
	if err != nil {
		return err
	}
	text, err := json.Marshal(value)
	if err == nil {
		text, err = json.Marshal(sealed{Ends: j.now().Add(life).Unix(), Value: text})
	}
	if err != nil {
		return fmt.Errorf("encode the cookie %s: %w", name, err)
	}
	content := base64.RawURLEncoding.EncodeToString(j.seal.Seal(nil, nil, text, []byte(full)))
	if len(content) > maxCookie {
		return fmt.Errorf("the cookie %s would have %d bytes, more than browsers keep", name, len(content))
	}
	http.SetCookie(w, cookie(full, content, secure, int(life.Seconds())))
	return nil
}

// Get decodes the value of a cookie, and reports whether there is exactly one, sealed by this Jar under the same name,
// and still valid.
func (j *Jar) Get(r *http.Request, name string, into any) bool {
	full, _, err := cookieName(r, name)
	found := r.CookiesNamed(full)
	if err != nil || len(found) != 1 || len(found[0].Value) > maxCookie {
		return false
	}
	content, err := base64.RawURLEncoding.DecodeString(found[0].Value)
	if err != nil {
		return false
	}
	text, err := j.seal.Open(nil, nil, content, []byte(full))
	var s sealed
	return err == nil && json.Unmarshal(text, &s) == nil && j.now().Unix() < s.Ends && json.Unmarshal(s.Value, into) == nil
}

// Delete has the browser delete a cookie.
func (j *Jar) Delete(w http.ResponseWriter, r *http.Request, name string) {
	if full, secure, err := cookieName(r, name); err == nil {
		http.SetCookie(w, cookie(full, "", secure, -1))
	}
}

func cookie(name, value string, secure bool, maxAge int) *http.Cookie {
	return &http.Cookie{
		Name: name, Value: value, Path: "/", MaxAge: maxAge,
		Secure: secure, HttpOnly: true, SameSite: http.SameSiteLaxMode,
	}
}

// cookieName returns the full name of a cookie on the connection of a request, and whether it is Secure.
func cookieName(r *http.Request, name string) (full string, secure bool, err error) {
	switch {
	case IsEncrypted(r):
		return hostPrefix + name, true, nil
	case isLocal(r):
		return name, false, nil
	}
	return "", false, ErrPlain
}

// IsEncrypted reports whether the browser uses TLS, to this process or to a proxy in front of it. A client that lies
// about it gets a cookie that its browser does not send over plain HTTP.
func IsEncrypted(r *http.Request) bool {
	proto := r.Header.Values("X-Forwarded-Proto")
	return r.TLS != nil || len(proto) == 1 && strings.EqualFold(proto[0], "https")
}

// isLocal reports whether a request came from this machine, to a host name of this machine, and through no proxy that
// names itself.
func isLocal(r *http.Request) bool {
	for _, header := range []string{"X-Forwarded-Proto", "X-Forwarded-For", "Forwarded"} {
		if r.Header.Get(header) != "" {
			return false
		}
	}
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !remote.Addr().Unmap().IsLoopback() {
		return false
	}
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	return IsLoopback(strings.Trim(host, "[]"))
}

// IsLoopback reports whether a host is this machine. It resolves no name: only localhost counts.
func IsLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}
