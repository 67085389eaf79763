package main

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
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

// fakeBudget limits chats as it is made to. Its headers show what is left as if it took what it should.
type fakeBudget struct {
	llm      *model
	reserves map[string]int64 // by key: what it takes for a chat
	settles  bool

	mu    sync.Mutex
	spent map[string]int64
}

// fakeLimit is the budget of each key.
const fakeLimit = 100_000

func (f *fakeBudget) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key, reserved := r.Header.Get("apikey"), f.reserves[r.Header.Get("apikey")]
	left, admitted := f.take(key, reserved)
	w.Header().Set("X-RateLimit-Limit", fmt.Sprint(fakeLimit))
	w.Header().Set("X-RateLimit-Reset", "1")
	if !admitted {
		w.Header().Set("X-RateLimit-Remaining", fmt.Sprint(left))
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
		fmt.Fprint(w, `{"title": "Too Many Requests", "message": "later"}`)
		return
	}
	shown := map[string]int64{"acme-key": promptTokens(prompt) + maxTokens, "beta-key": 1}[key]
	w.Header().Set("X-RateLimit-Remaining", fmt.Sprint(left-shown))
	answer := httptest.NewRecorder()
	f.llm.ServeHTTP(answer, r)
	if used, err := usedTokens(reply{body: answer.Body.String()}); err == nil && f.settles {
		f.add(key, used-reserved)
	}
	if _, err := w.Write(answer.Body.Bytes()); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// take takes a reservation if it fits. It returns what was left before.
func (f *fakeBudget) take(key string, reserved int64) (left int64, admitted bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	left = max(0, fakeLimit-f.spent[key])
	if reserved > left {
		return left, false
	}
	f.spent[key] += reserved
	return left, true
}

func (f *fakeBudget) add(key string, tokens int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.spent[key] += tokens
}

func TestChatsThatShowNoPromiseFail(t *testing.T) {
	most := promptTokens(prompt) + maxTokens
	for name, c := range map[string]struct {
		acme, beta int64 // reserved
		settles    bool
		want       string // in the error; "": none
	}{
		"as promised":                 {most, 1, true, ""},
		"no reservation for acme":     {1, 1, true, "acme overspent its budget by 44840 tokens"},
		"a reservation for beta too":  {most, most, true, "beta did not overspend"},
		"acme's never fits":           {fakeLimit + 1, 1, true, "acme: no chat was admitted"},
		"nothing is ever settled":     {most, 1, false, "acme, round 2: the headers show 19720 tokens left, want 51720"},
		"a chat costs nothing at all": {0, 0, false, "the headers show 100000 tokens left"},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeBudget{
				llm: newModel(), settles: c.settles, spent: map[string]int64{},
				reserves: map[string]int64{"acme-key": c.acme, "beta-key": c.beta},
			}
			server := httptest.NewServer(f)
			defer server.Close()
			var out bytes.Buffer
			err := playChats(context.Background(), server.URL, f.llm, func() int64 { return math.MaxInt64 }, &out)
			if c.want == "" && err != nil || !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("%v, want %q\n%s", err, c.want, &out)
			}
		})
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

func TestTheModelReportsItsTokensInHeaderAndBody(t *testing.T) {
	for body, want := range map[string]int{
		`{"messages": [{"role": "user", "content": "one two three"}], "max_tokens": 100}`: 200,
		`{"messages": [], "max_tokens": 100}`:                                             400,
		`{"messages": [{"content": "x"}]}`:                                                400,
		`{`:                                                                               400,
	} {
		w := httptest.NewRecorder()
		newModel().ServeHTTP(w, httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(body)))
		if w.Code != want {
			t.Errorf("%s: %d %s, want %d", body, w.Code, w.Body, want)
		}
		if want != 200 {
			continue
		}
		for _, part := range []string{
			`"content":"one two three"`, `"usage":{"prompt_tokens":3,"completion_tokens":30,"total_tokens":33}`,
		} {
			if !strings.Contains(w.Body.String(), part) {
				t.Errorf("no %s in %s", part, w.Body)
			}
		}
		if got := w.Header().Get("X-Tokens-Used"); got != "33" {
			t.Errorf("X-Tokens-Used: %q, want 33", got)
		}
	}
}
