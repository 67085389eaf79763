package main

import (
	"encoding/json"
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
)

// completionShares are the parts of max_tokens that the chats of a round use, in percent, in order of arrival.
var completionShares = []int64{30, 90, 60, 75, 45}

// chatRequest is the body of POST /v1/chat/completions.
type chatRequest struct {
	Model     string        `json:"model"`
	Messages  []chatMessage `json:"messages"`
	MaxTokens int64         `json:"max_tokens"`
}

type chatMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// chatAnswer is the body of the answer.
type chatAnswer struct {
	Object  string       `json:"object"`
	Model   string       `json:"model"`
	Choices []chatChoice `json:"choices"`
	Usage   chatUsage    `json:"usage"`
}

type chatChoice struct {
	Index        int         `json:"index"`
	Message      chatMessage `json:"message"`
	FinishReason string      `json:"finish_reason"`
}

type chatUsage struct {
	PromptTokens     int64 `json:"prompt_tokens"`
	CompletionTokens int64 `json:"completion_tokens"`
	TotalTokens      int64 `json:"total_tokens"`
}

// model is an upstream with OpenAI's API that echoes the last message. Like a self-hosted model server it sends the
// tokens of a chat in the header X-Tokens-Used. It answers once every chat of a round is admitted or denied, so all
// that are admitted are in flight at once.
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
	if len(chat.Messages) == 0 || chat.MaxTokens < 1 {
		http.Error(w, "need messages, and max_tokens from 1", http.StatusBadRequest)
		return
	}
	place, decided := m.admit()
	select {
	case <-decided:
	case <-r.Context().Done():
		return
	}
	answer := answerChat(chat, completionShares[place%len(completionShares)])
	body, err := json.Marshal(answer)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Tokens-Used", strconv.FormatInt(answer.Usage.TotalTokens, 10))
	_, _ = w.Write(body) // the client may have gone
}

// answerChat echoes the last message, and uses a share of max_tokens, in percent.
func answerChat(chat chatRequest, share int64) chatAnswer {
	usage := chatUsage{PromptTokens: promptTokens(chat.Messages), CompletionTokens: chat.MaxTokens * share / 100}
	usage.TotalTokens = usage.PromptTokens + usage.CompletionTokens
	echo := chatMessage{Role: "assistant", Content: chat.Messages[len(chat.Messages)-1].Content}
	return chatAnswer{
		Object: "chat.completion", Model: chat.Model, Usage: usage,
		Choices: []chatChoice{{Message: echo, FinishReason: "stop"}},
	}
}

// promptTokens counts a word as a token.
func promptTokens(messages []chatMessage) int64 {
	var words int
	for _, message := range messages {
		words += len(strings.Fields(message.Content))
	}
	return int64(words)
}
