package portal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"sync"
	"time"
)

const (
	// freshTime is the age from which an answer is read again, while pages still show it.
	freshTime = 10 * time.Second
	// staleTime is the age from which pages do not show an answer any more.
	staleTime = time.Minute
	// readTimeout bounds the read of an answer.
	readTimeout = 10 * time.Second
	// cacheCaller reads the answers for all operators. No token has such a name.
	cacheCaller = "portal:shared"
	// maxCached bounds the answers that are kept.
	maxCached = 64
)

// answerCache keeps answers of the API that take long, because they rank all tenants, and that are the same for each
// operator. Pages share one read, and show an answer of up to a minute ago while the next one is read.
type answerCache struct {
	portal *Portal
	ctx    context.Context // ended by Close
	end    func()

	mu   sync.Mutex
	kept map[string]*cachedAnswer // by path and query
}

// cachedAnswer is the answer to one request of the API.
type cachedAnswer struct {
	body json.RawMessage
	at   time.Time     // when its read began; zero: there is none
	err  error         // of the last read
	done chan struct{} // closed by the end of the read in progress; nil: there is none
}

func newAnswerCache(p *Portal) *answerCache {
	s := &answerCache{portal: p, kept: map[string]*cachedAnswer{}}
	s.ctx, s.end = context.WithCancel(context.Background())
	return s
}

// errClosed reports that the portal ended while a page waited.
var errClosed = errors.New("the portal is closed")

// getCached is get for an answer that is the same for each operator. It is at most a minute old.
func (v *visit) getCached(path string, query url.Values, into any) error {
	if !operators.includes(v.caller.Role) {
		return v.get(path, query, into)
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	a := v.portal.shared.open(path)
	if a == nil {
		return v.get(path, nil, into)
	}
	body, err := v.portal.shared.await(v.r.Context(), a)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("decode the answer to %s: %w", path, err)
	}
	return nil
}

// open returns the answer to a request. If it is due, a read of it is in progress. nil: too many are kept.
func (s *answerCache) open(path string) *cachedAnswer {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.portal.Now()
	a := s.kept[path]
	if a == nil {
		if len(s.kept) >= maxCached {
			maps.DeleteFunc(s.kept, func(_ string, a *cachedAnswer) bool { return a.done == nil && a.isStale(now) })
		}
		if len(s.kept) >= maxCached {
			return nil
		}
		a = &cachedAnswer{}
		s.kept[path] = a
	}
	if a.done == nil && now.Sub(a.at) >= freshTime {
		a.done = make(chan struct{})
		go s.read(path, a, now)
	}
	return a
}

func (a *cachedAnswer) isStale(now time.Time) bool { return now.Sub(a.at) >= staleTime }

// read reads an answer as an operator who may not write. It ends after readTimeout.
func (s *answerCache) read(path string, a *cachedAnswer, now time.Time) {
	ctx, cancel := context.WithTimeout(s.ctx, readTimeout)
	defer cancel()
	body, err := s.request(ctx, path)
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.err = err; err == nil {
		a.body, a.at = body, now
	} else if !a.isStale(now) {
		s.portal.Log.Warn("reading an answer for pages failed", "path", path, "error", err)
	}
	close(a.done)
	a.done = nil
}

// request returns the answer of the API. A panic of its code is an error, because it must not end the process.
func (s *answerCache) request(ctx context.Context, path string) (body json.RawMessage, err error) {
	defer func() {
		if failure := recover(); failure != nil {
			err = fmt.Errorf("panic: %v", failure)
		}
	}()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, home, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("read an answer for pages: %w", err)
	}
	v := &visit{r: r, caller: Caller{Name: cacheCaller, Role: RoleViewer}, portal: s.portal}
	return body, v.get(path, nil, &body)
}

// await returns an answer that is not stale, if need be after the read in progress.
func (s *answerCache) await(ctx context.Context, a *cachedAnswer) (json.RawMessage, error) {
	s.mu.Lock()
	body, done, stale := a.body, a.done, a.isStale(s.portal.Now())
	s.mu.Unlock()
	if !stale {
		return body, nil
	}
	if done != nil { // else it has just ended
		select {
		case <-done:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.ctx.Done():
			return nil, errClosed
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return a.body, a.err
}
