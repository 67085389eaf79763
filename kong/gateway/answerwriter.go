package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

// answerWriter writes the response to the client. Headers that plugins set go into any answer: the upstream's, Kong's
// own, or a plugin's. It notes what the log phase reads.
type answerWriter struct {
	http.ResponseWriter
	x       *exchange
	started bool

	request           *http.Request // nil if no plugin has a log phase
	upload            *countedBody  // of the request, if its length is not given
	source            string        // "" for the usual one
	proxied, answered time.Time     // when the upstream was called, and when its headers came; zero if not
	status            int           // 0 before the headers were sent
	header            http.Header   // as sent
	body              int64         // bytes, with the framing of chunks
	chunked           bool
}

// keep makes the writer note what the log phase reads.
func (a *answerWriter) keep(r *http.Request) {
	a.request = r
	if r.ContentLength >= 0 {
		a.x.size += r.ContentLength
		return
	}
	a.upload = &countedBody{ReadCloser: r.Body}
	r.Body = a.upload
}

// countedBody counts what is read of a body whose length is not given.
type countedBody struct {
	io.ReadCloser
	read atomic.Int64
}

// Read reads a part of the body.
func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read.Add(int64(n))
	return n, err
}

// Unwrap lets net/http flush and hijack the connection.
func (a *answerWriter) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader completes the headers of a proxied answer.
func (a *answerWriter) WriteHeader(status int) {
	if status >= 200 && !a.started {
		mergeHeaders(a.Header(), a.x.responseHeader)
		a.Header()["X-Kong-Upstream-Latency"] = []string{milliseconds(a.proxied, a.answered)}
		a.Header()["X-Kong-Proxy-Latency"] = []string{milliseconds(a.x.began, a.proxied)}
		a.start(status)
	}
	a.ResponseWriter.WriteHeader(status)
}

// start completes the headers of any answer.
func (a *answerWriter) start(status int) {
	header := a.Header()
	header["X-Kong-Request-Id"] = []string{a.x.requestID}
	if header["Content-Type"] == nil {
		header["Content-Type"] = nil // net/http would guess one
	}
	if status >= http.StatusInternalServerError {
		a.x.node.counters.ServerErrors.Add(1)
	}
	a.started = true
	if a.request == nil {
		return
	}
	a.status, a.header = status, maps.Clone(header)
	if _, known := getHeader(header, "Content-Length"); !known && hasBody(status) && a.request.ProtoAtLeast(1, 1) {
		a.chunked = a.request.ProtoMajor == 1
	}
}

// hasBody reports whether a response with this status may have a body.
func hasBody(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// Write writes a part of the body, and counts its bytes.
func (a *answerWriter) Write(p []byte) (int, error) {
	if len(p) > 0 {
		a.x.filterBody(p, false)
	}
	n, err := a.ResponseWriter.Write(p)
	if a.request != nil && n > 0 && a.request.Method != http.MethodHead {
		a.body += int64(n)
		if a.chunked {
			a.body += int64(len(strconv.FormatInt(int64(n), 16)) + len("\r\n\r\n"))
		}
	}
	return n, err
}

// exit writes x.exit: its status, body and headers, and no others but those that plugins set before and those that
// every answer has.
func (a *answerWriter) exit() {
	header, answer := a.Header(), a.x.exit
	header["Server"] = []string{serverName}
	header["X-Kong-Response-Latency"] = []string{milliseconds(a.x.began, time.Now())}
	replaceHeaders(header, a.x.responseHeader)
	replaceHeaders(header, answer.Header)
	if hasBody(answer.Status) {
		header["Content-Length"] = []string{strconv.Itoa(len(answer.Body))}
	}
	a.start(answer.Status)
	a.ResponseWriter.WriteHeader(answer.Status)
	if _, err := a.Write(answer.Body); err != nil && !errors.Is(err, http.ErrBodyNotAllowed) {
		a.x.node.log.Debug("write response", "error", err, "request_id", a.x.requestID)
	}
}

func milliseconds(from, to time.Time) string {
	return strconv.FormatInt(to.Sub(from).Milliseconds(), 10)
}

// errorTexts holds Kong's messages where neither a plugin nor the proxy gives one.
var errorTexts = map[int]string{
	http.StatusBadRequest:          "Bad request",
	http.StatusInternalServerError: "An unexpected error occurred",
	http.StatusBadGateway:          "An invalid response was received from the upstream server",
	http.StatusGatewayTimeout:      "The upstream server is timing out",
}

// respond ends the request with an answer of Kong's. pairs are names and values of headers.
func (x *exchange) respond(status int, body []byte, pairs ...string) {
	x.exit = &Exit{Status: status, Body: body, Header: http.Header{}}
	for i := 0; i+1 < len(pairs); i += 2 {
		setHeader(x.exit.Header, pairs[i], pairs[i+1])
	}
}

// fail ends the request as kong.response.error does for a client that accepts JSON. An empty message stands for Kong's
// own message for the status.
func (x *exchange) fail(status int, message string, pairs ...string) {
	message = cmp.Or(message, errorTexts[status])
	body := fmt.Appendf(nil, "{\n  \"message\":\"%s\",\n  \"request_id\":\"%s\"\n}", message, x.requestID)
	x.respond(status, body, append(pairs, "Content-Type", "application/json; charset=utf-8")...)
}
