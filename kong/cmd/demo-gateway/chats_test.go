package main

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestReservationsKeepTheBudgetOfConcurrentChats(t *testing.T) {
	var stdout, stderr bytes.Buffer
	status := run(context.Background(), []string{
		"-config", "../../kong-llm.yml", "-plugin", pluginBinary(t), "-listen", "127.0.0.1:0", "-chats",
	}, &stdout, &stderr)
	if status != 0 {
		t.Fatalf("status %d\n%s\n%s", status, &stdout, &stderr)
	}
	for _, want := range []string{
		"      1  1.000000        20       0  0.928410  0.557210  0.371200       0.000000\n",
		" USD of 1.000000: overspend 0.000000 USD\n",
		"40 chats cost 1.114420 USD of 1.000000: overspend 0.114420 USD\n",
	} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("no %q in\n%s", want, &stdout)
		}
	}
}

func TestABrokenGatewayFailsTheChats(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"sends no headers": func(http.ResponseWriter, *http.Request) {},
		"is broken":        func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) },
		"knows no model": func(w http.ResponseWriter, _ *http.Request) {
			for _, header := range []string{"Limit", "Remaining", "Reset"} {
				w.Header().Set("X-RateLimit-"+header, "1")
			}
			fmt.Fprint(w, "{}")
		},
	} {
		server := httptest.NewServer(handler)
		var out bytes.Buffer
		err := playChats(context.Background(), server.URL, newModelServer(), func() int64 { return math.MaxInt64 }, &out)
		if err == nil {
			t.Errorf("a gateway that %s passes:\n%s", name, &out)
		}
		server.Close()
	}
}

func TestTheModelServerSaysWhatAChatUsed(t *testing.T) {
	for body, want := range map[string]string{
		`{"model": "m", "messages": [{"content": "one two three"}], "max_tokens": 100, "seed": 6}`: "m 3 90", `{`: "",
	} {
		w := httptest.NewRecorder()
		newModelServer().ServeHTTP(w, httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(body)))
		used := strings.Join([]string{
			w.Header().Get(modelUsed), w.Header().Get(promptUsed), w.Header().Get(completionUsed),
		}, " ")
		if strings.TrimSpace(used) != want || (w.Code == http.StatusOK) != (want != "") {
			t.Errorf("%s: %d, %q, want %q", body, w.Code, used, want)
		}
	}
}
