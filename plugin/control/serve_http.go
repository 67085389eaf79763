package control

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
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

const (
	jsonType    = "application/json"
	problemType = "application/problem+json"

	requestID    = "X-Request-Id"
	maxRequestID = 64 // bytes
)

// exchange is one request and what became of it.
type exchange struct {
	http.ResponseWriter
	id       string
	length   int64    // of the body, in bytes; -1: it is not known yet
	token    string   // the name of the caller's; "": nobody's
	status   int      // 0: nothing is written yet
	problem  []byte   // what the answer to a faulty request says, which is written at the end; nil: nothing
	releases []func() // what gives back the room of the body
}

type exchangeKey struct{}

// exchangeOf is the exchange that a context is of.
func exchangeOf(ctx context.Context) *exchange {
	if x, ok := ctx.Value(exchangeKey{}).(*exchange); ok {
		return x
	}
	return &exchange{}
}

func (x *exchange) WriteHeader(status int) {
	if x.status == 0 {
		x.status = status
	}
	x.release() // the client may take its time to read
	if !x.isFault() {
		x.ResponseWriter.WriteHeader(status)
	}
}

// isFault reports whether the answer is one to a faulty request: that is kept, and written when all else is done.
func (x *exchange) isFault() bool { return isFault(x.status, x.token) }

func (x *exchange) Write(b []byte) (int, error) {
	if x.status == 0 {
		x.WriteHeader(http.StatusOK)
	}
	if x.isFault() {
		x.problem = append(x.problem, b...)
		return len(b), nil
	}
	return x.ResponseWriter.Write(b)
}

// Unwrap lets an http.ResponseController find the connection.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// endReading gives back the room of the body, and takes the deadline away by which the request was to be read. It has been
// read; but a connection whose deadline passes cancels the context of the request that is being answered.
func (x *exchange) endReading() error {
	x.release()
	if x.ResponseWriter == nil {
		return nil
	}
	err := http.NewResponseController(x.ResponseWriter).SetReadDeadline(time.Time{})
	if errors.Is(err, http.ErrNotSupported) {
		return nil // there is no connection, and no deadline
	}
	return err
}

// ServeHTTP answers a request: what is the same for all of them is here.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{ResponseWriter: w, id: r.Header.Get(requestID), length: r.ContentLength}
	if !isRequestID(x.id) {
		x.id = rand.Text()
	}
	setSecurityHeaders(x.Header(), r.TLS != nil)
	x.Header().Set(requestID, x.id)
	ctx, cancel := context.WithTimeout(context.WithValue(r.Context(), exchangeKey{}, x), answerTime+waitOf(r))
	defer cancel()
	r = r.WithContext(ctx)
	r.Body = http.MaxBytesReader(x, r.Body, maxBatchBody+1) // one more than what is told as too large
	start := s.Now()
	defer s.finish(x, r, start)
	s.serveRoute(x, r)
}

// waitOf is how long a request asks to wait for the nodes, if it may.
func waitOf(r *http.Request) time.Duration {
	wait, err := parseWait(r.URL.Query().Get("wait"))
	if err != nil {
		return 0
	}
	return wait
}

// finish ends an exchange: with an answer also after a panic, a count and a line in the log. How long the answer to a
// faulty request is delayed is no part of how long the request took.
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
	s.Log.LogAttrs(r.Context(), slog.LevelInfo, "request",
		slog.String("method", r.Method), slog.String("route", route), slog.Int("status", x.status),
		slog.Float64("ms", float64(took.Microseconds())/1000), slog.String("token", x.token), slog.String("request_id", x.id))
	if failure != nil {
		panic(http.ErrAbortHandler) // half an answer is out: the connection must not look whole
	}
	if x.isFault() {
		s.answerFault(x, r)
	}
}

// serveRoute finds the operation of a request, and refuses what no operation can be asked.
func (s *Server) serveRoute(x *exchange, r *http.Request) {
	handler, pattern := s.mux.Handler(r)
	switch at := r.URL.EscapedPath(); {
	case pattern != "" && path.Clean(at) != at:
		// ServeMux would lead to the path without its dots: a name that was not encoded must not become another resource.
		s.answerProblem(x, http.StatusNotFound, "paths with dot segments or double slashes do not exist; percent-encode slashes in names")
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

// answerUnrouted answers what ServeMux has no route for, as it would, but as a problem document.
func (s *Server) answerUnrouted(x *exchange, r *http.Request, handler http.Handler) {
	refusal := unroutedResponse{header: http.Header{}}
	handler.ServeHTTP(&refusal, r)
	switch refusal.status {
	case http.StatusMethodNotAllowed:
		x.Header()["Allow"] = refusal.header["Allow"]
		s.answerProblem(x, refusal.status, "this path supports "+refusal.header.Get("Allow"))
	default:
		s.answerProblem(x, http.StatusNotFound, "there is nothing at this path; see /openapi.yaml")
	}
}

// unroutedResponse takes what ServeMux writes to one whom it has no route for.
type unroutedResponse struct {
	header http.Header
	status int
}

func (r *unroutedResponse) Header() http.Header         { return r.header }
func (r *unroutedResponse) WriteHeader(status int)      { r.status = status }
func (r *unroutedResponse) Write(b []byte) (int, error) { return len(b), nil }

// answerProblem writes a problem document where there is no operation to do it.
func (s *Server) answerProblem(x *exchange, status int, detail string) {
	body, err := json.Marshal(huma.NewError(status, detail))
	if err != nil {
		s.Log.Error("encoding a problem document failed", "error", err)
	}
	x.Header().Set("Content-Type", problemType)
	x.Header().Set("Content-Length", strconv.Itoa(len(body)))
	x.WriteHeader(status)
	_, _ = x.Write(body) // a client that has gone is not told
}

// setSecurityHeaders sets the headers of every answer: it is for the program that asked, and for nobody's browser to show or keep.
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

// isRequestID tells whether a request's id may stand in the log and in a header.
func isRequestID(id string) bool {
	for _, c := range []byte(id) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && !strings.ContainsRune("-_.", rune(c)) {
			return false
		}
	}
	return id != "" && len(id) <= maxRequestID
}

// maxAccept is how much of Accept headers is read, in bytes: browsers send a quarter of it.
const maxAccept = 1 << 10

// acceptsJSON reports whether a client that sends these Accept headers reads JSON, as far as the first maxAccept bytes say.
// A client that does not say reads anything.
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

// isJSON reports whether the body, if there is one, is said to be JSON as it is, or nothing is said.
func isJSON(r *http.Request) bool {
	if r.ContentLength == 0 {
		return true
	}
	coding := strings.Join(r.Header.Values("Content-Encoding"), ",")
	if coding != "" && !strings.EqualFold(coding, "identity") {
		return false
	}
	said := r.Header.Get("Content-Type")
	if said == "" {
		return true
	}
	kind, _, err := mime.ParseMediaType(said)
	return err == nil && kind == jsonType
}

// clientAddress returns the address of the other end of a connection, as strangers are counted: of an IPv6 address the first
// 64 bits, of which everybody has the rest to choose from.
func clientAddress(address string) netip.Addr {
	const network = 64 // bits
	at, err := netip.ParseAddrPort(address)
	ip := at.Addr().Unmap().WithZone("")
	if err != nil || ip.Is4() {
		return ip
	}
	return netip.PrefixFrom(ip, network).Masked().Addr()
}
