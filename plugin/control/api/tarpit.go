package api

import (
	"context"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// Bounds of the delays of answers to faulty requests.
const (
	// faultsAtOnce is how many faulty requests of a sender are answered without delay.
	faultsAtOnce = 10
	// faultPause is the time between further answers.
	faultPause = 100 * time.Millisecond
	// maxDelay bounds the delay of one answer. It is shorter than bodyTime, because the deadline of the connection
	// would end the delay.
	maxDelay = 4 * time.Second
	// maxDelayed bounds how many answers are delayed at the same time, of all senders. Beyond it connections are
	// closed.
	maxDelayed = 1000
	// maxSenders bounds how many senders of faulty requests are remembered.
	maxSenders = 10_000
)

// sender is who sends requests: a token, or the address of requests without a valid one.
type sender struct {
	token   string
	address netip.Addr
}

// senderOf returns the sender of a request, after the lookup of its token.
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

// isFault reports whether an answer is for a wrong or early request. Answers that a correct client gets in
// the course of its work do not count: a missing row, or a row changed by another client.
func isFault(status int, token string) bool {
	switch status {
	case http.StatusNotFound:
		return token == "" // no such path
	case http.StatusConflict, http.StatusPreconditionFailed, http.StatusPreconditionRequired:
		return false
	}
	return status >= 400 && status < 500
}

// tarpit delays the answers to faulty requests, so that a sender of many waits instead of keeping the process busy. It
// is safe for concurrent use. Create it with newTarpit.
type tarpit struct {
	ended chan struct{} // closed on shutdown: no answer is delayed any more
	end   func()

	mu      sync.Mutex
	until   map[sender]time.Time // when a sender has all of its faultsAtOnce again
	delayed int                  // answers
}

// newTarpit returns a tarpit that remembers no sender.
func newTarpit() *tarpit {
	t := &tarpit{ended: make(chan struct{}), until: map[sender]time.Time{}}
	t.end = sync.OnceFunc(func() { close(t.ended) })
	return t
}

// delay counts a faulty request, and returns the delay of its answer.
func (t *tarpit) delay(from sender, now time.Time) time.Duration {
	const most = faultsAtOnce * faultPause
	t.mu.Lock()
	defer t.mu.Unlock()
	taken := min(max(t.until[from].Sub(now), 0), most+maxDelay) + faultPause // also if the clock has stepped back
	wait := min(max(taken-most, 0), maxDelay)
	if _, ok := t.until[from]; !ok && len(t.until) >= maxSenders {
		makeRoom(t.until, now, maxSenders)
	}
	t.until[from] = now.Add(min(taken, most+maxDelay))
	return wait
}

// reserve takes one of the maxDelayed places, until release. It reports false if none is free.
func (t *tarpit) reserve() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.delayed == maxDelayed {
		return false
	}
	t.delayed++
	return true
}

// release frees a place.
func (t *tarpit) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.delayed--
}

// wait waits until the time is up, ctx ends or the process ends.
func (t *tarpit) wait(ctx context.Context, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-t.ended:
	}
}

// answerFault writes the answer to a faulty request. By then its body can be freed.
func (s *Server) answerFault(x *exchange, r *http.Request) {
	if s.limits != nil {
		s.delay(x, r)
	}
	x.ResponseWriter.WriteHeader(x.status)
	_, _ = x.ResponseWriter.Write(x.problem) // the client may have disconnected
}

// delay delays the answer to a faulty request, or has its connection closed after it.
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
