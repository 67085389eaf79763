package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

const (
	// modelHost is the host of the service in kong-llm.yml.
	modelHost = "llm.internal"
	// maxChatBytes bounds the body of a chat.
	maxChatBytes = 1 << 20
	// These headers say what a chat used, as self-hosted model servers do.
	modelUsed      = "X-Model"
	promptUsed     = "X-Prompt-Tokens"
	completionUsed = "X-Completion-Tokens"
)

// priced is a model with its prices of kong-llm.yml, in µUSD per 100 tokens: cents per million tokens.
type priced struct {
	name               string
	prompt, completion int64
}

// models are those that the chats of a round ask in turn.
var models = [...]priced{{"gpt-4o", 250, 1000}, {"gpt-4.1-mini", 40, 160}}

// cost returns the price of a chat in µUSD, rounded up.
func (m *priced) cost(prompt, completion int64) int64 {
	return (prompt*m.prompt + completion*m.completion + 99) / 100
}

// completionShares are the parts of max_tokens that the chats of a round use, in percent, by their seed.
var completionShares = [...]int64{30, 90, 60, 75, 45}

// chatRequest is the body of POST /v1/chat/completions, as far as the server reads it.
type chatRequest struct {
	Model     string        `json:"model"`
	Messages  []chatMessage `json:"messages"`
	MaxTokens int64         `json:"max_tokens"`
	Seed      uint          `json:"seed"`
}

type chatMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// promptTokens counts a word of the messages as a token.
func (c *chatRequest) promptTokens() int64 {
	var words int
	for _, message := range c.Messages {
		words += len(strings.Fields(message.Content))
	}
	return int64(words)
}

// modelServer is an upstream that uses a share of the tokens that a chat may use, and says nothing. It answers once
// every chat of a round is admitted or denied, so all that are admitted are in flight at once.
type modelServer struct {
	mu        sync.Mutex
	undecided int
	decided   chan struct{} // closed when every chat of the round is decided
}

// newModelServer returns a server that answers at once, until the first round.
func newModelServer() *modelServer {
	m := &modelServer{decided: make(chan struct{})}
	close(m.decided)
	return m
}

// beginRound expects n chats.
func (m *modelServer) beginRound(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.undecided, m.decided = n, make(chan struct{})
}

// decide counts a chat that was denied, or has arrived. It returns what is closed when all chats are decided.
func (m *modelServer) decide() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.undecided--; m.undecided == 0 {
		close(m.decided)
	}
	return m.decided
}

// ServeHTTP answers a chat.
func (m *modelServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var chat chatRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxChatBytes)).Decode(&chat); err != nil {
		http.Error(w, "body: "+err.Error(), http.StatusBadRequest)
		return
	}
	select {
	case <-m.decide():
	case <-r.Context().Done():
		return
	}
	share := completionShares[chat.Seed%uint(len(completionShares))]
	prompt, completion := chat.promptTokens(), chat.MaxTokens*share/100
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set(modelUsed, chat.Model)
	w.Header().Set(promptUsed, strconv.FormatInt(prompt, 10))
	w.Header().Set(completionUsed, strconv.FormatInt(completion, 10))
	fmt.Fprintf(w, `{"model":%q,"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`, chat.Model, prompt, completion)
}
