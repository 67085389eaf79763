package gateway

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"time"
)

// echo serves the built-in upstream.
func echo(w http.ResponseWriter, r *http.Request) {
	headers := make(map[string]string, len(r.Header))
	for name, values := range r.Header {
		headers[name] = strings.Join(values, ", ")
	}
	path, query, _ := strings.Cut(r.URL.RequestURI(), "?")
	body, err := json.MarshalIndent(map[string]any{
		"method": r.Method, "path": path, "query": query, "host": r.Host, "headers": headers,
	}, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, "%s\n", body)
}

// ServeAnswer serves the upstream that answers as the query says: ?status=418&header=X-Tokens:34&size=1000&chunks=4&
// delay=100ms is status 418 with that header after 100 ms, and 4 chunks with 1000 bytes in all. Each part may be left
// out, and header may be repeated. A delay ends when the caller has gone.
func ServeAnswer(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	delay, _ := time.ParseDuration(query.Get("delay")) // what cannot be read is left out
	select {
	case <-time.After(delay):
	case <-r.Context().Done():
		return
	}
	for _, line := range query["header"] {
		name, value, _ := strings.Cut(line, ":")
		w.Header().Add(name, strings.TrimSpace(value))
	}
	size, _ := strconv.Atoi(query.Get("size"))
	chunks, _ := strconv.Atoi(query.Get("chunks"))
	status, _ := strconv.Atoi(query.Get("status"))
	body := bytes.Repeat([]byte("x"), max(size, 0))
	if chunks == 0 {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(cmp.Or(status, http.StatusOK))
	for n := max(chunks, 1); n > 0; n-- {
		part := body[:len(body)/n]
		_, err := w.Write(part)
		if err == nil && chunks > 0 {
			err = http.NewResponseController(w).Flush()
		}
		if err != nil {
			return // the caller has gone, or the status has no body
		}
		body = body[len(part):]
	}
}

// handlerTransport is an upstream within the process.
type handlerTransport struct {
	handler http.Handler
}

// RoundTrip serves the request and returns what the handler wrote.
func (t handlerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil {
		r.Body = http.NoBody // handlers may read it
	}
	w := httptest.NewRecorder()
	t.handler.ServeHTTP(w, r)
	if err := r.Context().Err(); err != nil {
		return nil, err // the client has gone
	}
	response := w.Result()
	response.ContentLength = int64(w.Body.Len())
	switch {
	case w.Flushed && response.Header["Content-Length"] == nil:
		response.ContentLength = -1
	case response.Header["Content-Length"] == nil && hasBody(response.StatusCode):
		response.Header.Set("Content-Length", strconv.Itoa(w.Body.Len()))
	}
	return response, nil
}
