package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
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
	answer, err := parseAnswer(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	select {
	case <-time.After(answer.delay):
	case <-r.Context().Done():
		return
	}
	for _, line := range r.URL.Query()["header"] {
		name, value, _ := strings.Cut(line, ":")
		w.Header().Add(name, strings.TrimSpace(value))
	}
	body := bytes.Repeat([]byte("x"), answer.size)
	if answer.chunks == 0 {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(answer.status)
	for n := max(answer.chunks, 1); n > 0; n-- {
		part := body[:len(body)/n]
		_, err := w.Write(part)
		if err == nil && answer.chunks > 0 {
			err = http.NewResponseController(w).Flush()
		}
		if err != nil {
			return // the caller has gone, or the status has no body
		}
		body = body[len(part):]
	}
}

// scriptedAnswer is what ServeAnswer answers.
type scriptedAnswer struct {
	status, size, chunks int
	delay                time.Duration
}

func parseAnswer(query url.Values) (a scriptedAnswer, err error) {
	a.status = http.StatusOK
	for name, number := range map[string]*int{"status": &a.status, "size": &a.size, "chunks": &a.chunks} {
		if text := query.Get(name); text != "" {
			if *number, err = strconv.Atoi(text); err != nil || *number < 0 {
				return a, fmt.Errorf("%s: %q is no number from 0", name, text)
			}
		}
	}
	if a.status < 200 || a.status > 599 {
		return a, fmt.Errorf("status: %d is not from 200 to 599", a.status)
	}
	if text := query.Get("delay"); text != "" {
		if a.delay, err = time.ParseDuration(text); err != nil {
			return a, fmt.Errorf("delay: %w", err)
		}
	}
	return a, nil
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
