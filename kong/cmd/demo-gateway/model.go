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
	// tokensUsed is the header with the tokens of a chat, as self-hosted model servers send it.
	tokensUsed = "X-Tokens-Used"
)

// completionShares are the parts of max_tokens that the chats of a round use, in percent, in order of arrival.
var completionShares = []int64{30, 90, 60, 75, 45}

// chatRequest is the body of POST /v1/chat/completions, as far as the model reads it.
type chatRequest struct {
	Messages  []chatMessage `json:"messages"`
	MaxTokens int64         `json:"max_tokens"`
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

// model is an upstream that uses a share of the tokens that a chat may use, and says nothing. It answers once every
// chat of a round is admitted or denied, so all that are admitted are in flight at once.
type model struct {
	mu        sync.Mutex
	undecided int
	arrived   int
	decided   chan struct{} // closed when every chat of the round is decided
}

// newModel returns a model that answers at once, until the first round.
func newModel() *model {
	m := &model{decided: make(chan struct{})}
	close(m.decided)
	return m
}

// beginRound expects n chats.
func (m *model) beginRound(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.undecided, m.arrived, m.decided = n, 0, make(chan struct{})
}

// deny counts a chat that will not arrive.
func (m *model) deny() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.decideOne()
}

// admit counts a chat that has arrived. It returns its place in the round, and what is closed when all are decided.
func (m *model) admit() (place int, decided <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	place = m.arrived
	m.arrived++
	m.decideOne()
	return place, m.decided
}

func (m *model) decideOne() {
	if m.undecided--; m.undecided == 0 {
		close(m.decided)
	}
}

// ServeHTTP answers a chat.
func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var chat chatRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxChatBytes)).Decode(&chat); err != nil {
		http.Error(w, "body: "+err.Error(), http.StatusBadRequest)
		return
	}
	place, decided := m.admit()
	select {
	case <-decided:
	case <-r.Context().Done():
		return
	}
	used := chat.promptTokens() + chat.MaxTokens*completionShares[place%len(completionShares)]/100
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set(tokensUsed, strconv.FormatInt(used, 10))
	fmt.Fprintf(w, `{"usage":{"total_tokens":%d}}`, used)
}
