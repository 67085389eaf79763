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
		"      1   100000        20       0     80280    48280     32000              0\n",
		"41 chats used 96574 tokens of 100000: overspend 0\n",
		"60 chats used 144840 tokens of 100000: overspend 44840\n",
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
		err := playChats(context.Background(), server.URL, newModel(), func() int64 { return math.MaxInt64 }, &out)
		if err == nil {
			t.Errorf("a gateway that %s passes:\n%s", name, &out)
		}
		server.Close()
	}
}

func TestTheModelReportsItsTokens(t *testing.T) {
	for body, want := range map[string]string{
		`{"messages": [{"content": "one two three"}], "max_tokens": 100}`: "33", `{`: "",
	} {
		w := httptest.NewRecorder()
		newModel().ServeHTTP(w, httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(body)))
		if got := w.Header().Get(tokensUsed); got != want || (w.Code == http.StatusOK) != (want != "") {
			t.Errorf("%s: %d, %q tokens, want %q", body, w.Code, got, want)
		}
	}
}
