package api

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// warningUnread is the warning of a write that waited for nodes which could not be read.
const warningUnread = "the change is written, but the nodes that enforce it could not be read in time: " +
	"GET /v1/ratelimit/fleet shows them"

// finishWrite counts a write and, if the caller wants it, waits for the nodes. It returns no error, because the write
// has succeeded: if the nodes cannot be read, it adds a warning.
func (s *Server) finishWrite(
	ctx context.Context, kind string, version int64, wait time.Duration, warnings answers.Warnings,
) answers.Written {
	s.metrics.writes.WithLabelValues(kind).Inc()
	written := answers.Written{Version: version, Warnings: warnings}
	if wait <= 0 {
		return written
	}
	fleet, err := s.awaitNodes(ctx, version, wait)
	if err != nil {
		s.Log.Warn("reading which nodes enforce a version failed", "version", version, "error", err)
		written.Warnings.Warnings = append(written.Warnings.Warnings, warningUnread)
		return written
	}
	written.Enforcement = &answers.Enforcement{Version: version, Reach: fleet.Reach(version)}
	return written
}

// awaitNodes waits until all live nodes enforce a version or the time is up, and returns the fleet.
func (s *Server) awaitNodes(ctx context.Context, version int64, wait time.Duration) (rows.Fleet, error) {
	if err := exchangeOf(ctx).endReading(); err != nil {
		return rows.Fleet{}, fmt.Errorf("wait for the nodes: %w", err)
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if err := s.Rows.Await(waiting, version, rows.LiveWithin); err != nil && waiting.Err() == nil {
		return rows.Fleet{}, err
	}
	return s.Rows.Fleet(ctx, rows.LiveWithin)
}

// newChange returns a change by the caller. The default reason is that the change was made by the API.
func newChange(ctx context.Context, reason string) rows.Change {
	return rows.Change{Actor: callerOf(ctx).actor(), Reason: cmp.Or(strings.TrimSpace(reason), reasonDefault)}
}

// newChange returns a change by the caller, which happens once if it sent a key. request is all that the change depends
// on.
func (o *Once) newChange(ctx context.Context, reason string, request ...any) rows.Change {
	c := newChange(ctx, reason)
	if o.Key == "" {
		return c
	}
	text, err := json.Marshal(request)
	if err != nil {
		panic(fmt.Sprintf("control: a request cannot be encoded: %v", err)) // it was decoded from JSON
	}
	c.Idempotency = &rows.Idempotency{Token: callerOf(ctx).idempotencyName(), Key: o.Key, Request: sha256.Sum256(text)}
	return c
}

// replayedHeader returns the value of the header Idempotent-Replayed, or "".
func replayedHeader(c rows.Change) string {
	if c.Idempotency != nil && c.Idempotency.Replayed {
		return "true"
	}
	return ""
}

// etag returns the ETag of a revision of a row.
func etag(id, revision int64) string { return fmt.Sprintf(`"%d-%d"`, id, revision) }

// IfMatch is the state that a write was made from.
type IfMatch struct {
	IfMatch string `header:"If-Match" maxLength:"1024" doc:"The ETag of the current version, so that no change is overwritten unseen; * matches any version." example:"\"7-3\""`
}

// IfNoneMatch is a state that the caller has, or that a write must not find.
type IfNoneMatch struct {
	IfNoneMatch string `header:"If-None-Match" maxLength:"1024" doc:"On a read: cached ETags; a match is answered with 304. On a write: * to create only, and never overwrite."`
}

// matches reports whether the header lists a tag.
func (m *IfNoneMatch) matches(tag string) bool { return listsTag(m.IfNoneMatch, tag, true) }

// listsTag reports whether a list of ETags has one, or is *. A weak ETag counts only if weak is set.
func listsTag(list, tag string, weak bool) bool {
	for item := range strings.SplitSeq(list, ",") {
		item = strings.TrimSpace(item)
		if weak {
			item = strings.TrimPrefix(item, "W/")
		}
		if item == tag || item == "*" {
			return true
		}
	}
	return false
}

// requiredRevision returns the revision that a write must find, or an answer if the header does not match the current
// one.
func (m *IfMatch) requiredRevision(current string, revision int64) (int64, error) {
	switch {
	case m.IfMatch == "":
		return 0, conditionalAnswer(http.StatusPreconditionRequired, current,
			"send If-Match: "+current+" or If-Match: *, to change the version that you read, or any version")
	case strings.TrimSpace(m.IfMatch) == "*":
		return rows.Present, nil
	case listsTag(m.IfMatch, current, false):
		return revision, nil
	}
	return 0, staleError(current)
}

// keyedPut is a PUT of a row by its key, which creates the row or replaces it.
type keyedPut[R any] struct {
	IfMatch
	IfNoneMatch
	read            func() (R, error)
	state           func(R) (tag string, revision int64)
	isSame          func(current R) bool // the write would change nothing
	write           func(revision int64) (row R, version int64, err error)
	absent, present string // why a condition does not hold: there is no row, or there is one
}

// putTries bounds how often a put starts over.
const putTries = 3

// do writes the row, and returns the status of the answer. A write depends on the row that was read; if that has
// changed meanwhile, do starts over, and at last answers that it has.
func (p *keyedPut[R]) do() (status int, row R, version int64, err error) {
	for range putTries {
		current, err := p.read()
		status, revision := http.StatusOK, int64(rows.Absent)
		switch {
		case err == nil:
			revision, err = p.expectedRevision(current)
		case isMissing(err) && p.IfMatch.IfMatch != "":
			err = conditionalAnswer(http.StatusPreconditionFailed, "", p.absent)
		case isMissing(err):
			status, err = http.StatusCreated, nil
		}
		if err != nil {
			return 0, row, 0, err
		}
		row, version, err = p.write(revision)
		if !isConflict(err) {
			return status, row, version, err
		}
	}
	return 0, row, 0, staleError("")
}

// expectedRevision returns the revision that the write must find, given the current row.
func (p *keyedPut[R]) expectedRevision(current R) (int64, error) {
	tag, revision := p.state(current)
	switch {
	case p.matches(tag):
		return 0, conditionalAnswer(http.StatusPreconditionFailed, tag, p.present)
	case p.IfMatch.IfMatch == "" && p.isSame(current):
		return revision, nil
	}
	return p.requiredRevision(tag, revision)
}

// staleError returns the 412 for a write that was made from another state than the current one, whose tag may be "".
func staleError(current string) error {
	return conditionalAnswer(http.StatusPreconditionFailed, current, "it was changed in the meantime: read it again")
}

// conditionalAnswer returns an answer about the state of a row, with its ETag; "" if there is no row.
func conditionalAnswer(status int, current, detail string) error {
	err := huma.NewError(status, detail)
	if current == "" {
		return err
	}
	return huma.ErrorWithHeaders(err, http.Header{"Etag": {current}})
}

// isConflict reports whether a write found another state of the row than it required.
func isConflict(err error) bool {
	conflict := new(rows.ConflictError)
	return errors.As(err, &conflict)
}

// isMissing reports whether there is no such row.
func isMissing(err error) bool {
	missing := new(rows.NotFoundError)
	return errors.As(err, &missing)
}
