package portal

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"sync"
	"time"
)

const (
	// sharedTime is how long pages share an answer.
	sharedTime = 10 * time.Second
	// readTimeout bounds the read of an answer.
	readTimeout = 10 * time.Second
	// maxCached bounds the answers that are kept: of more, each page reads its own.
	maxCached = 64
)

// answerCache keeps answers of the API that take long, because they rank all tenants, and that are the same for each
// operator. Pages share one read of each in every sharedTime. The zero value is empty and safe for concurrent use.
type answerCache struct {
	mu    sync.Mutex
	since time.Time // when the current sharedTime began
	reads map[string]func() (json.RawMessage, error)
}

// answer returns what read returned first for a path in the current sharedTime. An error is not kept.
func (c *answerCache) answer(
	now time.Time, path string, read func() (json.RawMessage, error),
) (json.RawMessage, error) {
	c.mu.Lock()
	if now.Sub(c.since) >= sharedTime {
		c.since, c.reads = now, map[string]func() (json.RawMessage, error){}
	}
	shared, ok := c.reads[path]
	if !ok {
		shared = sync.OnceValues(read)
	}
	if len(c.reads) < maxCached {
		c.reads[path] = shared
	}
	reads := c.reads
	c.mu.Unlock()
	body, err := shared()
	if err != nil {
		c.mu.Lock()
		delete(reads, path)
		c.mu.Unlock()
	}
	return body, err
}

// getShared is get for a page of operators, and an answer that is the same for each. It is at most sharedTime old.
func (v *visit) getShared(path string, query url.Values, into any) error {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	body, err := v.portal.shared.answer(v.portal.Now(), path, func() (body json.RawMessage, err error) {
		// The read is also for others, and ends if its page does not.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(v.r.Context()), readTimeout)
		defer cancel()
		return body, v.api().Get(ctx, path, nil, &body)
	})
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("decode the answer to %s: %w", path, err)
	}
	return nil
}
