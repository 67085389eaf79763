package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
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
	fmt.Fprintf(w, "%s\n", body)
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
	response := w.Result()
	response.ContentLength = int64(w.Body.Len())
	return response, nil
}
