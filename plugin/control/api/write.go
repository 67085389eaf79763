package api

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
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

// finishWrite waits for the nodes if the caller wants it. It returns no error, because the write has succeeded: if the
// nodes cannot be read, it adds a warning.
func (s *Server) finishWrite(
	ctx context.Context, version int64, wait time.Duration, warnings []string,
) answers.Written {
	written := answers.Written{Version: version, Warnings: answers.Warnings{Warnings: warnings}}
	if wait <= 0 {
		return written
	}
	fleet, err := s.awaitNodes(ctx, version, wait, rows.LiveWithin)
	if err != nil {
		s.Log.Warn("reading which nodes enforce a version failed", "version", version, "error", err)
		written.Warnings.Warnings = append(written.Warnings.Warnings, warningUnread)
		return written
	}
	written.Enforcement = &answers.Enforcement{Version: version, Reach: fleet.Reach(version)}
	return written
}

// awaitNodes waits until all nodes that reported within a time enforce a version, or the time is up, and returns the
// fleet.
func (s *Server) awaitNodes(ctx context.Context, version int64, wait, within time.Duration) (rows.Fleet, error) {
	if err := exchangeOf(ctx).endReading(); err != nil {
		return rows.Fleet{}, fmt.Errorf("wait for the nodes: %w", err)
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if err := s.Rows.Await(waiting, version, within); err != nil && waiting.Err() == nil {
		return rows.Fleet{}, err
	}
	return s.Rows.Fleet(ctx, within)
}

// newChange returns a change by the caller. The default reason is that the change was made by the API.
func newChange[R ~string](ctx context.Context, why R) rows.Change {
	x := exchangeOf(ctx)
	c := rows.Change{
		Actor: callerOf(ctx).actor(), Reason: cmp.Or(strings.TrimSpace(string(why)), reasonDefault), DryRun: x.dryRun,
	}
	if x.match.isGiven() {
		c.Accept = func(revision int64) error {
			_, err := x.match.requiredRevision(tagOf(revision), revision)
			return err
		}
	}
	return c
}

// changeOnce returns a change by the caller, which happens once if it sent a key. It depends on the path and the body
// of the request.
func changeOnce[R ~string](ctx context.Context, o Once, why R, body any) rows.Change {
	c := newChange(ctx, why)
	if o.Key == "" || c.DryRun {
		return c
	}
	text, err := json.Marshal([]any{exchangeOf(ctx).path, body})
	if err != nil {
		panic(fmt.Sprintf("api: a request cannot be encoded: %v", err)) // it was decoded from JSON
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

// stale is the code of the answer to a write that was made from another state than the current one.
const stale = http.StatusPreconditionFailed

// conditional has the codes of the answers to a write that must name the state that it was made from.
var conditional = []int{stale, http.StatusPreconditionRequired}

func etag(kind string, id, revision int64) string {
	return fmt.Sprintf(`"%s%d-%d"`, kind, id, revision)
}

// IfMatch is the state that a write was made from.
type IfMatch struct {
	IfMatch  string `header:"If-Match" maxLength:"1024" doc:"The ETag of the current version, so that no change is overwritten unseen; * matches any version." example:"\"7-3\""`
	Revision int64  `query:"revision"  minimum:"1"      doc:"The current revision, in place of an ETag."                                                            example:"3"`

	Overwrite bool `query:"overwrite" doc:"Write over any version, and where there is none."`
}

func (m *IfMatch) isGiven() bool { return m.IfMatch != "" || m.Revision != 0 }

// Match is the state of a candidate, webhook or token that a write was made from. Its writes without one change any
// version.
type Match struct {
	IfMatch  string  `header:"If-Match" maxLength:"1024" doc:"The ETag of the version that the caller has read, so that no change is overwritten unseen. Absent, or *: any version." example:"\"57\""`
	Revision matched `query:"revision"  minimum:"1"      doc:"The revision that the caller has read, in place of an ETag."                                                             example:"57"`
}

type matched int64

// Resolve has newChange make changes of this state.
func (m *matched) Resolve(ctx huma.Context) []error {
	exchangeOf(ctx.Context()).match = IfMatch{IfMatch: ctx.Header("If-Match"), Revision: int64(*m)}
	return nil
}

// tagOf returns the ETag of a revision of what a Match names.
func tagOf(revision int64) string { return fmt.Sprintf(`"%d"`, revision) }

// IfNoneMatch is a state that the caller has, or that a write must not find.
type IfNoneMatch struct {
	IfNoneMatch string `header:"If-None-Match" maxLength:"1024" doc:"On a read: cached ETags; a match is answered with 304. On a write: * to create only, and never overwrite."`
}

func (m *IfMatch) ifMatch() *IfMatch           { return m }
func (m *IfNoneMatch) noneMatch() *IfNoneMatch { return m }

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

// requiredRevision returns the revision that a write must find, or an answer if the caller names another state than the
// current one.
func (m *IfMatch) requiredRevision(current string, revision int64) (int64, error) {
	switch {
	case m.Revision != 0 && m.Revision != revision:
		return 0, staleError(current)
	case m.Revision != 0 && m.IfMatch == "":
		return revision, nil
	case m.Overwrite && m.IfMatch == "":
		return rows.Present, nil
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
