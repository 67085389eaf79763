package api

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"slices"
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

// Resolve implements [huma.Resolver]: it reports faults that the schema does not cover.
func (o *OrgPath) Resolve(huma.Context) []error {
	if len(o.Org) <= maxName && isText(o.Org) {
		return nil
	}
	return []error{fault("path.org", "must be 1 to 128 bytes of text, without NUL and U+FFFD", nil)}
}

func (o *OrgPath) key() *OrgPath { return o }

// faultsWith returns the faults of the org and of requests in the query. An input with both needs it, because huma
// skips the Resolve of embedded fields if the input has its own.
func (o *OrgPath) faultsWith(ctx huma.Context, requests *Requests) []error {
	return append(o.Resolve(ctx), requests.faults("query")...)
}

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
		case isNoNumber(ctx.Operation(), name, list[0]):
			faults = append(faults, fault("query."+name, "must be a finite number", nil))
		}
	}
	if len(faults) > 0 {
		s.writeProblem(ctx, http.StatusUnprocessableEntity, invalidRequest, faults...)
		return
	}
	next(ctx)
}

// isNoNumber reports whether a parameter is a number, and its text is infinite or NaN. No answer in JSON could have it.
func isNoNumber(o *huma.Operation, name, text string) bool {
	isParam := func(p *huma.Param) bool {
		return p.In == "query" && p.Name == name && p.Schema != nil && p.Schema.Type == huma.TypeNumber
	}
	if !slices.ContainsFunc(o.Parameters, isParam) {
		return false
	}
	x, err := strconv.ParseFloat(text, 64)
	return err == nil && (math.IsNaN(x) || math.IsInf(x, 0))
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
	Wait string `query:"wait" maxLength:"16" doc:"Wait at most this long (1s, 500ms; at most 30s; 5s without a value) until all live nodes enforce the change, and list those that do not, and silent nodes, which are not waited for." example:"1s"`
}

// Resolve implements [huma.Resolver].
func (w *Waiting) Resolve(ctx huma.Context) []error {
	u := ctx.URL()
	w.Wait = waitText(u.Query())
	if _, err := parseWait(w.Wait); err != nil {
		return []error{fault("query.wait", err.Error(), w.Wait)}
	}
	return nil
}

// bareWait is the value of wait without a time, as of a flag.
const bareWait = "true"

// waitText returns the value of wait in a query: "" if it is absent, and bareWait if it has no value.
func waitText(query url.Values) string {
	if text := query.Get("wait"); text != "" || !query.Has("wait") {
		return text
	}
	return bareWait
}

// parseWait parses the value of wait.
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
	wait, _ := parseWait(w.Wait)
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

// Paging selects a page of a list.
type Paging struct {
	Limit  int    `query:"limit"  minimum:"1" maximum:"1000" default:"100" doc:"The maximum number of items."`
	Cursor string `query:"cursor"                                          doc:"The next_cursor of the previous page." maxLength:"64"`
}

// Resolve implements [huma.Resolver].
func (p *Paging) Resolve(huma.Context) []error {
	if _, err := readCursor(p.Cursor); err != nil {
		return []error{fault("query.cursor", "must be a next_cursor returned by this list", p.Cursor)}
	}
	return nil
}

// cursor encodes an id in a form that does not invite clients to build their own.
func cursor(id int64) string { return answers.Cursor(strconv.FormatInt(id, 10)) }

// readCursor returns the id in a cursor, or 0 for "".
func readCursor(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return 0, err
	}
	id, err := strconv.ParseInt(string(raw), 10, 64)
	if err == nil && (id < 1 || cursor(id) != text) {
		err = strconv.ErrSyntax
	}
	return id, err
}

// page returns the last id of the previous page, or 0 for the first page, and the most rows to read: one more than the
// page has. Resolve has checked the cursor.
func (p *Paging) page() (after int64, most int) {
	id, _ := readCursor(p.Cursor)
	return id, p.Limit + 1
}

func (p *Paging) size() int { return p.Limit }

// NamePaging selects a page of a list of names.
type NamePaging struct {
	Limit  int    `query:"limit"  minimum:"1" maximum:"1000" default:"100" doc:"The maximum number of items."`
	Cursor string `query:"cursor"                                          doc:"The next_cursor of the previous page." maxLength:"256"`
}

// Resolve implements [huma.Resolver].
func (p *NamePaging) Resolve(huma.Context) []error {
	if name, _ := p.page(); p.Cursor != "" &&
		(name == "" || len(name) > maxName || !utf8.ValidString(name) || strings.ContainsRune(name, 0)) {
		return []error{fault("query.cursor", "must be a next_cursor returned by this list", p.Cursor)}
	}
	return nil
}

// page returns the last name of the previous page, or "" for the first page, and the most rows to read.
func (p *NamePaging) page() (after string, most int) {
	name, err := base64.RawURLEncoding.Strict().DecodeString(p.Cursor)
	if err != nil {
		name = nil // not what was decoded before the fault
	}
	return string(name), p.Limit + 1
}

func (p *NamePaging) size() int { return p.Limit }

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

// textField is a text of a request, with the name of its field.
type textField struct{ name, value string }

// notTexts returns the faults of the fields that isText rejects. place is where they are, such as body.
func notTexts(place string, fields ...textField) (faults []error) {
	for _, f := range fields {
		if !isText(f.value) {
			faults = append(faults, fault(place+"."+f.name, notText, nil))
		}
	}
	return faults
}

// Reason has the reason for a deletion.
type Reason struct {
	Reason string `query:"reason" required:"true" maxLength:"1024" doc:"Why; recorded in the audit." example:"the customer left"`
}

// Resolve implements [huma.Resolver].
func (r *Reason) Resolve(huma.Context) []error {
	if r.Reason == "" {
		return nil
	}
	return reasonFaults("query.reason", r.Reason)
}

func (r *Reason) why() string { return r.Reason }

// reasonFaults returns the faults of a required reason at a path.
func reasonFaults(path, text string) []error {
	switch {
	case strings.TrimSpace(text) == "" || len(text) > maxReason:
		return []error{fault(path, reasonProblem, nil)}
	case !isText(text):
		return []error{fault(path, notText, nil)}
	}
	return nil
}

// Once has the idempotency key of a write.
type Once struct {
	Key string `header:"Idempotency-Key" minLength:"1" maxLength:"128" pattern:"^[!-~]([ -~]*[!-~])?$" patternDescription:"printable characters of ASCII" doc:"A retry with the same key within 24 hours writes nothing and gets the answer of the first request; while that is in progress, the retry waits for it. Keys are separate for each token."`
}

const day = 24 * time.Hour

// longest bounds the times that parseDuration returns exactly. It is far below the maximum of time.Duration.
const longest = 100_000 * day

var errDuration = errors.New("must be a time such as 30s, 1m, 1h or 1d")

// duration matches the text of a time, even one that overflows time.Duration.
var duration = regexp.MustCompile(`^([0-9]+d)?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))*$`)

// parseDuration parses 30s, 1m, 1h30m, 1d or 1d12h. A time above longest becomes longest+1, without an error.
func parseDuration(text string) (time.Duration, error) {
	if text == "" || !duration.MatchString(text) {
		return 0, errDuration
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
