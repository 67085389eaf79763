package api

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"mime"
	"net/http"
	"net/netip"
	"path"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

const (
	jsonType    = "application/json"
	problemType = "application/problem+json"

	requestID = "X-Request-Id"
)

// safeID matches a request id that is safe in logs and headers.
var safeID = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// exchange is a request and the state of its answer.
type exchange struct {
	http.ResponseWriter
	id       string
	length   int64    // of the body, in bytes; -1: unknown
	path     string   // decoded
	org      string   // in the path, or ""
	token    string   // the name of the valid token; "": none
	status   int      // 0: nothing has been written
	dryRun   bool     // its write is undone
	match    IfMatch  // the state that its write was made from, of what has a Match
	releases []func() // give up the places of the body among the large ones
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange { return ctx.Value(exchangeKey{}).(*exchange) }

func (x *exchange) WriteHeader(status int) {
	if x.status == 0 {
		x.status = status
	}
	x.release() // the client may read slowly
	x.ResponseWriter.WriteHeader(status)
}

func (x *exchange) Write(b []byte) (int, error) {
	if x.status == 0 {
		x.WriteHeader(http.StatusOK)
	}
	return x.ResponseWriter.Write(b)
}

// Unwrap returns the writer for an http.ResponseController.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// endReading gives up the places of the body, and removes the read deadline from a request that has been read: a
// connection whose deadline passes cancels the context of the request in progress.
func (x *exchange) endReading() error {
	x.release()
	err := http.NewResponseController(x.ResponseWriter).SetReadDeadline(time.Time{})
	if errors.Is(err, http.ErrNotSupported) {
		return nil // without a connection there is no deadline
	}
	return err
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{ResponseWriter: w, id: r.Header.Get(requestID), length: r.ContentLength, path: r.URL.Path}
	if !safeID.MatchString(x.id) {
		x.id = rand.Text()
	}
	setSecurityHeaders(x.Header(), r.TLS != nil)
	x.Header().Set(requestID, x.id)
	ctx := context.WithValue(r.Context(), exchangeKey{}, x)
	if !callerOf(ctx).Direct {
		wait, _ := parseWait(waitIn(r.URL.Query())) // 0 for a fault
		limited, cancel := context.WithTimeout(ctx, answerTime+wait)
		defer cancel()
		ctx = limited
	}
	r = r.WithContext(ctx)
	start := s.Now()
	defer s.finish(x, r, start)
	s.serveRoute(x, r)
}

// finish ends an exchange: it answers after a panic, and counts and logs the request.
func (s *Server) finish(x *exchange, r *http.Request, start time.Time) {
	failure := recover()
	x.release()
	if err, _ := failure.(error); failure != nil && !errors.Is(err, http.ErrAbortHandler) {
		s.Log.Error("a request ended in a panic", "panic", failure, "request_id", x.id, "stack", string(debug.Stack()))
		if x.status == 0 {
			s.answerProblem(x, http.StatusInternalServerError, "internal error; search the log for the request id")
			failure = nil
		}
	}
	took := s.Now().Sub(start)
	route := r.Pattern
	if _, path, ok := strings.Cut(route, " "); ok {
		route = path
	}
	s.metrics.observeRequest(route, r.Method, x.status, took)
	level := slog.LevelInfo
	if callerOf(r.Context()).Routine && x.status < http.StatusBadRequest {
		level = slog.LevelDebug
	}
	s.Log.LogAttrs(r.Context(), level, "request",
		slog.String("method", r.Method), slog.String("route", route), slog.Int("status", x.status),
		slog.Float64("ms", float64(took.Microseconds())/1000), slog.String("token", x.token), slog.String("request_id", x.id))
	if failure != nil {
		panic(http.ErrAbortHandler) // part of the answer is written: break the connection
	}
}

// serveRoute calls the operation of a request, or answers what no operation accepts.
func (s *Server) serveRoute(x *exchange, r *http.Request) {
	handler, pattern := s.mux.Handler(r)
	switch at := r.URL.EscapedPath(); {
	case pattern != "" && path.Clean(at) != at:
		// ServeMux would redirect to the clean path: a name that was not encoded must not become another resource.
		s.answerProblem(x, http.StatusNotFound, "paths with dot segments or double slashes do not exist; "+
			"percent-encode slashes in names")
	case pattern == "":
		s.answerUnrouted(x, r, handler)
	case !acceptsJSON(r.Header.Values("Accept")):
		r.Pattern = pattern
		s.answerProblem(x, http.StatusNotAcceptable, "answers are "+jsonType+" and nothing else")
	case !isJSON(r):
		r.Pattern = pattern
		s.answerProblem(x, http.StatusUnsupportedMediaType, "send the body as "+jsonType+", and without a Content-Encoding")
	default:
		s.mux.ServeHTTP(x, r)
	}
}

// answerUnrouted answers a request without a route as ServeMux would, but with a problem document.
func (s *Server) answerUnrouted(x *exchange, r *http.Request, handler http.Handler) {
	response, err := answers.Served(handler.ServeHTTP).RoundTrip(r) //nolint:bodyclose // in memory
	if err == nil && response.StatusCode == http.StatusMethodNotAllowed {
		x.Header()["Allow"] = response.Header["Allow"]
		s.answerProblem(x, response.StatusCode, "this path supports "+response.Header.Get("Allow"))
		return
	}
	detail := "there is nothing at this path; see /openapi.yaml"
	if s.Rows == nil {
		detail = "there is no REST API here: it needs a database, and --database is off"
	}
	s.answerProblem(x, http.StatusNotFound, detail)
}

// answerProblem writes a problem document outside of an operation.
func (s *Server) answerProblem(x *exchange, status int, detail string) {
	body, err := json.Marshal(huma.NewError(status, detail))
	if err != nil {
		s.Log.Error("encoding a problem document failed", "error", err)
	}
	x.Header().Set("Content-Type", problemType)
	x.Header().Set("Content-Length", strconv.Itoa(len(body)))
	x.WriteHeader(status)
	_, _ = x.Write(body) // the client may have disconnected
}

// setSecurityHeaders sets the headers of every answer: browsers must not render or cache it.
func setSecurityHeaders(h http.Header, overTLS bool) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	if overTLS {
		h.Set("Strict-Transport-Security", "max-age=31536000")
	}
}

// maxAccept bounds how much of Accept headers is read, in bytes: browsers send a quarter of it.
const maxAccept = 1 << 10

// acceptsJSON reports whether Accept headers allow JSON in their first maxAccept bytes, or are absent.
func acceptsJSON(headers []string) bool {
	if len(headers) == 0 {
		return true
	}
	all := strings.Join(headers, ",")
	for item := range strings.SplitSeq(all[:min(len(all), maxAccept)], ",") {
		kind, params, err := mime.ParseMediaType(item)
		if err != nil || strings.Trim(params["q"], "0.") == "" && params["q"] != "" {
			continue
		}
		switch {
		case kind == "*/*", kind == "application/*", kind == jsonType, strings.HasPrefix(kind, "application/openapi+"):
			return true
		}
	}
	return false
}

// isJSON reports whether the headers declare the body, if there is one, as unencoded JSON, or declare nothing.
func isJSON(r *http.Request) bool {
	if r.ContentLength == 0 {
		return true
	}
	coding := strings.Join(r.Header.Values("Content-Encoding"), ",")
	if coding != "" && !strings.EqualFold(coding, "identity") {
		return false
	}
	contentType := r.Header.Get("Content-Type")
	if contentType == "" {
		return true
	}
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && kind == jsonType
}

// clientAddress returns the address that anonymous requests are counted by: of IPv6 the first 64 bits, because a client
// can use any address within them.
func clientAddress(address string) netip.Addr {
	const network = 64 // bits
	at, err := netip.ParseAddrPort(address)
	ip := at.Addr().Unmap().WithZone("")
	if err != nil || ip.Is4() {
		return ip
	}
	return netip.PrefixFrom(ip, network).Masked().Addr()
}
