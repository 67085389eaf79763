package api

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// Parameters of many operations are embedded in their inputs. Their types are exported because huma reads exported
// fields only.

// maxName bounds the name of an org, in bytes: a longer one is counted by its hash.
const maxName = 128

// OrgPath is the org in a path.
type OrgPath struct {
	Org string `path:"org" minLength:"1" maxLength:"128" doc:"The org, as requests identify it, with slashes percent-encoded. An org whose name exceeds 128 bytes is counted by its hash: use the hash." example:"acme"`
}

func (o *OrgPath) key() *OrgPath { return o }
func (o *OrgPath) rowKey() any   { return o.Org }

// OfTenant filters a list by tenant.
type OfTenant struct {
	Tenant string `query:"tenant" maxLength:"128" doc:"Only what is about this tenant." example:"acme"`
}

// otherSpelling returns the problem of a field that duplicates another one.
func otherSpelling(of string) string {
	return "is another spelling of " + of + ": give only one of them"
}

// entityTags matches the values of If-Match, by RFC 9110.
var entityTags = regexp.MustCompile(`^\s*(\*|(W/)?"[^"]*"(\s*,\s*(W/)?"[^"]*")*)\s*$`)

// rejectAmbiguous denies a request that can be read in more than one way. Otherwise a part of the query that cannot be
// decoded, or a duplicate parameter or condition, would be ignored silently.
func (s *Server) rejectAmbiguous(ctx huma.Context, next func(huma.Context)) {
	at := ctx.URL()
	values, err := url.ParseQuery(at.RawQuery)
	if err != nil {
		s.writeProblem(ctx, http.StatusUnprocessableEntity, invalidRequest, fault("query", "cannot be decoded", nil))
		return
	}
	var faults []error
	if org := ctx.Param("org"); len(org) > maxName || !isText(org) {
		faults = append(faults, fault("path.org", "must be 1 to 128 bytes of text, without NUL and U+FFFD", nil))
	}
	for _, name := range []string{"Idempotency-Key", "If-Match", "If-None-Match"} {
		if isRepeated(ctx, name) {
			faults = append(faults, fault("header."+name, "is given more than once", nil))
		}
	}
	if ctx.Operation().Metadata[accessKey] == decideAccess && ctx.Header("Idempotency-Key") != "" {
		faults = append(faults, fault("header.Idempotency-Key",
			"is not supported for checks: sending a check again spends again", nil))
	}
	if tags := ctx.Header("If-Match"); tags != "" && !entityTags.MatchString(tags) {
		faults = append(faults, fault("header.If-Match",
			`must be an ETag, such as "7-3" with its quotes, a comma-separated list of them, or *`, nil))
	}
	for name, list := range values {
		switch {
		case len(list) > 1:
			faults = append(faults, fault("query."+name, "is given more than once", nil))
		case !isText(list[0]):
			faults = append(faults, fault("query."+name, notText, nil))
		}
	}
	if len(faults) > 0 {
		s.writeProblem(ctx, http.StatusUnprocessableEntity, invalidRequest, faults...)
		return
	}
	next(ctx)
}

// isRepeated reports whether a request has more than one header of a name.
func isRepeated(ctx huma.Context, name string) bool {
	count := 0
	ctx.EachHeader(func(other, _ string) {
		if strings.EqualFold(other, name) {
			count++
		}
	})
	return count > 1
}

// DefaultWait is how long a write waits for the nodes if the request asks for it without a time.
const DefaultWait = 5 * time.Second

// Waiting has the parameter of a write that can wait for the nodes.
type Waiting struct {
	Wait waitText `query:"wait" maxLength:"16" doc:"Wait at most this long (1s, 500ms; at most 30s; 5s without a value) until all live nodes enforce the change, and list those that do not, and silent nodes, which are not waited for." example:"1s"`
}

// DryRun has the parameter of a write that can be tried.
type DryRun struct {
	DryRun dryRun `query:"dry_run" doc:"Check the request and make the change, then undo it: the answer is what it would be, with version 0."`
}

type dryRun bool

// Resolve has newChange make changes that are undone.
func (d *dryRun) Resolve(ctx huma.Context) []error {
	exchangeOf(ctx.Context()).dryRun = bool(*d)
	return nil
}

// Writing has the parameters of a write of what nodes enforce.
type Writing struct {
	Waiting
	DryRun
}

type waitText string

func (w *waitText) Resolve(ctx huma.Context) []error {
	u := ctx.URL()
	text := waitIn(u.Query())
	*w = waitText(text)
	if _, err := parseWait(text); err != nil {
		return []error{fault("query.wait", err.Error(), text)}
	}
	return nil
}

// bareWait is the value of wait without a time, as of a flag.
const bareWait = "true"

// waiting is an input that has a Waiting.
type waiting[In any] interface {
	*In
	wait() time.Duration
}

// waitIn returns the value of wait in a query: "" if it is absent, and bareWait if it has no value.
func waitIn(query url.Values) string {
	if text := query.Get("wait"); text != "" || !query.Has("wait") {
		return text
	}
	return bareWait
}

func parseWait(text string) (time.Duration, error) {
	switch text {
	case "":
		return 0, nil
	case bareWait:
		return DefaultWait, nil
	}
	wait, err := time.ParseDuration(text)
	if err != nil || wait < 0 || wait > maxWait {
		return 0, fmt.Errorf("must be a time from 0s to %v, such as 1s or 500ms, or empty for %v", maxWait, DefaultWait)
	}
	return wait, nil
}

// wait returns how long to wait; Resolve has checked the text.
func (w *Waiting) wait() time.Duration {
	wait, _ := parseWait(string(w.Wait))
	return wait
}

// allowBareWait describes wait as a parameter that needs no value, in all operations that have it.
func (s *Server) allowBareWait() {
	for _, item := range s.api.OpenAPI().Paths {
		for _, o := range []*huma.Operation{item.Get, item.Post, item.Put, item.Delete} {
			if o == nil {
				continue
			}
			for _, p := range o.Parameters {
				p.AllowEmptyValue = p.AllowEmptyValue || p.Name == "wait"
			}
		}
	}
}

// Paging selects a page of a list, after an item's place: its id or its name.
type Paging[P any] struct {
	Limit  int         `query:"limit"  minimum:"1" maximum:"1000" default:"100" doc:"The maximum number of items."`
	Cursor cursorTo[P] `query:"cursor"                                          doc:"The next_cursor of the previous page." maxLength:"256"`
}

// page returns the place of the last item of the previous page, or the zero value for the first page, and the most rows
// to read: one more than the page has.
func (p *Paging[P]) page() (after P, most int) { return p.Cursor.place(), p.Limit + 1 }

func (p *Paging[P]) size() int { return p.Limit }

// cursorTo has the place of the last item of a page, in a form that does not invite clients to build their own.
type cursorTo[P any] string

// newCursor returns the cursor of the page after a place: a name as it is, or JSON.
func newCursor[P any](place P) cursorTo[P] {
	if name, ok := any(place).(string); ok {
		return cursorTo[P](answers.Cursor(name))
	}
	text, _ := json.Marshal(place) // it has texts, numbers and times of 4-digit years only
	return cursorTo[P](answers.Cursor(string(text)))
}

// place returns the place, or the zero value where there is none.
func (c cursorTo[P]) place() (place P) {
	raw, _ := base64.RawURLEncoding.DecodeString(string(c)) // Resolve has found a fault
	if name, ok := any(&place).(*string); ok {
		*name = string(raw)
	} else {
		_ = json.Unmarshal(raw, &place)
	}
	return place
}

func (c *cursorTo[P]) Resolve(_ huma.Context, at *huma.PathBuffer) []error {
	place := c.place()
	if *c == "" || newCursor(place) == *c && isText(fmt.Sprint(place)) {
		return nil
	}
	return []error{fault(at.String(), "must be a next_cursor returned by this list", string(*c))}
}

const (
	maxReason     = 1024 // bytes
	reasonProblem = "is required, in 1 to 1024 bytes: why is this change made?"
	reasonDefault = "changed by the API"

	// notText is the problem of a text that isText rejects.
	notText = "must be UTF-8 text without NUL and U+FFFD, the replacement character"
)

// isText reports whether every reader reads a text as the same. It rejects NUL, which Postgres cannot store, and
// U+FFFD, which decoders substitute for invalid input such as half a surrogate pair.
func isText(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsRune(text, 0) && !strings.ContainsRune(text, utf8.RuneError)
}

type reason string

func (r *reason) Resolve(_ huma.Context, at *huma.PathBuffer) []error {
	if strings.TrimSpace(string(*r)) == "" || len(*r) > maxReason {
		return []error{fault(at.String(), reasonProblem, nil)}
	}
	return nil
}

// optionalReason is why a change is made, or "".
type optionalReason string

func (r *optionalReason) Resolve(ctx huma.Context, at *huma.PathBuffer) []error {
	if *r == "" {
		return nil
	}
	return (*reason)(r).Resolve(ctx, at)
}

// Reason has the reason for a deletion.
type Reason struct {
	Reason reason `query:"reason" required:"true" maxLength:"1024" doc:"Why; recorded in the audit." example:"the customer left"`
}

func (r *Reason) why() string { return string(r.Reason) }

// Once has the idempotency key of a write.
type Once struct {
	Key string `header:"Idempotency-Key" minLength:"1" maxLength:"128" pattern:"^[!-~]([ -~]*[!-~])?$" patternDescription:"printable characters of ASCII" doc:"A retry with the same key within 24 hours writes nothing and gets the answer of the first request; while that is in progress, the retry waits for it. Keys are separate for each token."`
}

const day = 24 * time.Hour

// longest bounds the times that ParseDuration returns exactly. It is far below the maximum of time.Duration.
const longest = 100_000 * day

// duration matches the text of a time, even one that overflows time.Duration.
var duration = regexp.MustCompile(`^([0-9]+d)?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))*$`)

// ParseDuration parses 30s, 1m, 1h30m, 1d or 1d12h. A time above longest becomes longest+1, without an error.
func ParseDuration(text string) (time.Duration, error) {
	if text == "" || !duration.MatchString(text) {
		return 0, errors.New("must be a time such as 30s, 1m, 1h or 1d")
	}
	var total time.Duration
	if days, rest, ok := strings.Cut(text, "d"); ok {
		n, err := strconv.Atoi(days)
		if err != nil || n > int(longest/day) {
			return longest + 1, nil
		}
		if total, text = time.Duration(n)*day, rest; rest == "" {
			return total, nil
		}
	}
	more, err := time.ParseDuration(text)
	if err != nil || more > longest { // the pattern matched, so it is too long
		return longest + 1, nil
	}
	return min(total+more, longest+1), nil
}
