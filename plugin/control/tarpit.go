package control

import (
	"context"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// How fast faulty requests are answered.
const (
	// faultsAtOnce is how many faulty requests of one sender are answered without a delay.
	faultsAtOnce = 10
	// faultPause lies between the answers to more of them.
	faultPause = 100 * time.Millisecond
	// maxDelay bounds how long one answer is delayed. It is shorter than bodyTime, after which the connection's deadline
	// would end the delay.
	maxDelay = 4 * time.Second
	// maxDelayed bounds how many answers are delayed at once, of all senders. For one more the connection is closed.
	maxDelayed = 1000
	// maxSenders bounds how many senders of faulty requests are remembered.
	maxSenders = 10_000
)

// sender is who makes requests: the holder of a token, or an address from which no known token came.
type sender struct {
	token   string
	address netip.Addr
}

// senderOf returns who made a request, once its token was looked up.
func senderOf(x *exchange, r *http.Request) sender {
	if x.token != "" {
		return sender{token: x.token}
	}
	return sender{address: clientAddress(r.RemoteAddr)}
}

// kind returns the label of the sender in metrics.
func (s sender) kind() string {
	if s.token != "" {
		return byToken
	}
	return byAddress
}

// isFault reports whether an answer says that the request should not have been made, or not so soon. Those that a
// correct client gets in the course of its work are none: what is not there, or was changed by another.
func isFault(status int, token string) bool {
	switch status {
	case http.StatusNotFound:
		return token == "" // there is no such path
	case http.StatusConflict, http.StatusPreconditionFailed, http.StatusPreconditionRequired:
		return false
	}
	return status >= 400 && status < 500
}

// tarpit delays the answers to faulty requests, so that whoever sends many waits instead of keeping the process busy.
// It is safe for concurrent use; make it with newTarpit.
type tarpit struct {
	ended chan struct{} // closed: no answer is delayed any more
	end   func()

	mu      sync.Mutex
	until   map[sender]time.Time // when the next faultsAtOnce of a sender are answered at once again
	delayed int                  // answers
}

func newTarpit() *tarpit {
	t := &tarpit{ended: make(chan struct{}), until: map[sender]time.Time{}}
	t.end = sync.OnceFunc(func() { close(t.ended) })
	return t
}

// delay counts a faulty request, and returns how long its answer has to wait.
func (t *tarpit) delay(from sender, now time.Time) time.Duration {
	const most = faultsAtOnce * faultPause
	t.mu.Lock()
	defer t.mu.Unlock()
	taken := min(max(t.until[from].Sub(now), 0), most+maxDelay) + faultPause // also where the clock has stepped back
	wait := min(max(taken-most, 0), maxDelay)
	if _, known := t.until[from]; !known && len(t.until) >= maxSenders {
		makeRoom(t.until, now, maxSenders)
	}
	t.until[from] = now.Add(min(taken, most+maxDelay))
	return wait
}

// enter takes a place among the answers that are delayed, until leave. It reports false where all are taken.
func (t *tarpit) reserve() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.delayed == maxDelayed {
		return false
	}
	t.delayed++
	return true
}

func (t *tarpit) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.delayed--
}

// wait waits, but not longer than until ctx or the process ends.
func (t *tarpit) wait(ctx context.Context, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-t.ended:
	}
}

// answerFault answers a faulty request, whose body and all that was made of it can be freed meanwhile.
func (s *Server) answerFault(x *exchange, r *http.Request) {
	if s.limits != nil {
		s.delay(x, r)
	}
	x.ResponseWriter.WriteHeader(x.status)
	_, _ = x.ResponseWriter.Write(x.problem) // a client that has gone is not told
}

// delay waits until a faulty request is to be answered, or has its connection closed after an answer at once.
func (s *Server) delay(x *exchange, r *http.Request) {
	from := senderOf(x, r)
	wait := s.tarpit.delay(from, s.Now())
	switch {
	case wait == 0:
	case s.tarpit.reserve():
		defer s.tarpit.release()
		s.metrics.delayed.WithLabelValues(from.kind()).Inc()
		s.Hold(r.Context(), wait)
	default:
		s.metrics.delayed.WithLabelValues(closedInstead).Inc()
		x.Header().Set("Connection", "close")
	}
}
