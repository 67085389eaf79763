package portal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
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
	reads  singleflight.Group // by path and query

	mu   sync.Mutex
	kept map[string]cachedAnswer // by path and query
}

// cachedAnswer is the answer to one request of the API.
type cachedAnswer struct {
	body json.RawMessage
	at   time.Time // when its read began
}

func newAnswerCache(p *Portal) *answerCache {
	c := &answerCache{portal: p, kept: map[string]cachedAnswer{}}
	c.ctx, c.end = context.WithCancel(context.Background())
	return c
}

// errClosed reports that the portal ended while a page waited.
var errClosed = errors.New("the portal is closed")

// getCached is get for an answer that is the same for each operator. It is at most a minute old.
func (v *visit) getCached(path string, query url.Values, into any) error {
	if !slices.Contains(operators, v.caller.Role) {
		return v.get(path, query, into)
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	body, err := v.portal.shared.answer(v.r.Context(), path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("decode the answer to %s: %w", path, err)
	}
	return nil
}

// answer returns an answer that is not stale, if need be after a read. If it is not fresh, a read is in progress.
func (c *answerCache) answer(ctx context.Context, path string) (json.RawMessage, error) {
	c.mu.Lock()
	kept := c.kept[path]
	c.mu.Unlock()
	age := c.portal.Now().Sub(kept.at)
	if age < freshTime {
		return kept.body, nil
	}
	read := c.reads.DoChan(path, func() (any, error) { return c.read(path) })
	if age < staleTime {
		return kept.body, nil
	}
	select {
	case result := <-read:
		body, _ := result.Val.(json.RawMessage)
		return body, result.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.ctx.Done():
		return nil, errClosed
	}
}

// read reads an answer and keeps it, unless it is one too many.
func (c *answerCache) read(path string) (json.RawMessage, error) {
	now := c.portal.Now()
	body, err := c.request(path)
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.kept, func(_ string, a cachedAnswer) bool { return now.Sub(a.at) >= staleTime })
	_, isKept := c.kept[path]
	switch {
	case err == nil && (isKept || len(c.kept) < maxCached):
		c.kept[path] = cachedAnswer{body, now}
	case err != nil && isKept:
		c.portal.Log.Warn("reading an answer for pages failed", "path", path, "error", err)
	}
	return body, err
}

// request returns the answer of the API to an operator who may not write. It ends after readTimeout. A panic of the
// API's code is an error, because it must not end the process.
func (c *answerCache) request(path string) (body json.RawMessage, err error) {
	defer func() {
		if failure := recover(); failure != nil {
			err = fmt.Errorf("panic: %v", failure)
		}
	}()
	ctx, cancel := context.WithTimeout(c.ctx, readTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, home, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("read an answer for pages: %w", err)
	}
	v := &visit{r: r, caller: api.Caller{Token: cacheCaller, Role: api.Viewer}, portal: c.portal}
	err = v.get(path, nil, &body)
	return body, err
}
