package api_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// meeting is a world in which a reset stops while it empties the buckets, until it may go on. emptied counts resets.
type meeting struct {
	*planned
	inside, leave chan struct{}
	emptied       *atomic.Int64
}

func meet(t *testing.T) *meeting {
	t.Helper()
	m := &meeting{inside: make(chan struct{}, 2), leave: make(chan struct{}), emptied: new(atomic.Int64)}
	m.planned = chilled(t, func(ctx context.Context) error {
		m.emptied.Add(1)
		m.inside <- struct{}{}
		select {
		case <-m.leave:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return m
}

// sent sends a reset under a key, and returns a channel for the answer.
func (m *meeting) sent(ctx context.Context, key string) <-chan answer {
	answers := make(chan answer, 1)
	c := call{admin, "POST", acmeReset, `{"reason":"billed twice"}`, []string{"Idempotency-Key", key}}
	go func() { answers <- m.serve(c, c.request().WithContext(ctx)) }()
	return answers
}

func TestTwoConcurrentResetsUnderOneKeyAreDoneOnceWithTheSameAnswer(t *testing.T) {
	t.Parallel()
	m := meet(t)
	first := m.sent(t.Context(), "k")
	<-m.inside
	second := m.sent(t.Context(), "k")
	select {
	case a := <-second:
		t.Errorf("the second is answered before the first is done: %d %s", a.Code, a.Body)
	case <-m.inside:
		t.Error("the second empties the buckets too")
	case <-time.After(200 * time.Millisecond):
	}
	close(m.leave)
	one, other := m.want(<-first, http.StatusOK), m.want(<-second, http.StatusOK)
	if one.Body.String() != other.Body.String() || one.Header().Get("Idempotent-Replayed") != "" ||
		other.Header().Get("Idempotent-Replayed") != "true" {
		t.Errorf("answered %v %s\nand %v %s", one.Header(), one.Body, other.Header(), other.Body)
	}
	if n, recorded := m.emptied.Load(), len(m.resets()); n != 1 || recorded != 1 {
		t.Errorf("the buckets were emptied %d times, and the audit has %d resets; want 1", n, recorded)
	}
}

func TestAResetWhoseFirstRequestIsInProgressForLongIsDenied(t *testing.T) {
	t.Parallel()
	m := meet(t)
	first := m.sent(t.Context(), "k")
	<-m.inside
	var a answer
	for within, late := 4*time.Second, true; late && within < time.Minute; within *= 2 { // a busy machine needs longer
		hasty, cancel := context.WithTimeout(t.Context(), within)
		a, late = <-m.sent(hasty, "k"), hasty.Err() != nil
		cancel()
	}
	m.want(a, http.StatusConflict)
	if p := read[problem](m.world, a); !strings.Contains(p.Detail, "in progress") || a.Header().Get("Retry-After") == "" {
		t.Errorf("%v %s: want it to say why, and when to ask again", a.Header(), a.Body)
	}
	close(m.leave)
	m.want(<-first, http.StatusOK)
	if n, recorded := m.emptied.Load(), len(m.resets()); n != 1 || recorded != 1 {
		t.Errorf("the buckets were emptied %d times, and the audit has %d resets; want 1", n, recorded)
	}
}

func TestAWaitingResetIsDoneAfterTheFirstOneFailed(t *testing.T) {
	t.Parallel()
	inside, leave := make(chan struct{}), make(chan error)
	p := chilled(t, func(context.Context) error {
		inside <- struct{}{}
		return <-leave
	})
	m := &meeting{planned: p}
	first := m.sent(t.Context(), "k")
	<-inside
	second := m.sent(t.Context(), "k")
	leave <- errors.New("the buckets are unavailable")
	m.want(<-first, http.StatusServiceUnavailable)
	<-inside
	leave <- nil
	if a := m.want(<-second, http.StatusOK); a.Header().Get("Idempotent-Replayed") != "" {
		t.Errorf("it is a replay of what was not made: %s", a.Body)
	}
}
