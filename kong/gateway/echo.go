package gateway

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
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
	if _, err := w.Write(append(body, '\n')); err != nil {
		return // the client has closed the connection
	}
}

// handlerTransport is an upstream within the process.
type handlerTransport struct {
	handler http.Handler
}

// RoundTrip serves the request and returns what the handler wrote.
func (t handlerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil {
		r.Body = http.NoBody
	}
	w := &memoryWriter{header: http.Header{}}
	t.handler.ServeHTTP(w, r)
	w.WriteHeader(http.StatusOK)
	return &http.Response{
		StatusCode: w.status, Header: w.header, Body: io.NopCloser(&w.body), ContentLength: int64(w.body.Len()),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
	}, r.Body.Close()
}

// memoryWriter keeps a response in memory.
type memoryWriter struct {
	status int
	header http.Header
	body   bytes.Buffer
}

func (w *memoryWriter) Header() http.Header { return w.header }

func (w *memoryWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}

func (w *memoryWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}
