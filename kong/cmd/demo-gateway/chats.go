package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const (
	// chatsAtOnce is the number of concurrent chats of a round.
	chatsAtOnce = 20
	// maxRounds is more than a budget of kong-llm.yml lasts.
	maxRounds = 20
	// chatTimeout bounds one chat, and the wait for the log phases of a round.
	chatTimeout = time.Minute
	// logPoll is the time between two looks at the log phases.
	logPoll = 5 * time.Millisecond
)

// chat is what every chat sends.
var chat = chatRequest{
	Messages: []chatMessage{
		{Role: "system", Content: "You are an assistant of the records team."},
		{Role: "user", Content: "Summarise the records of last week."},
	},
	MaxTokens: 4000,
}

// chatSession plays rounds of concurrent chats, and prints what they reserved and used.
type chatSession struct {
	session
	llm       *model
	logEvents func() int64 // log phases that are over
	sent      int64        // chats
}

// chatReply is the answer to a chat.
type chatReply struct {
	admitted         bool
	limit, remaining int64 // of the headers, after the reservation
	used             int64 // tokens
}

// tally sums chats.
type tally struct {
	admitted, denied int
	reserved, used   int64
	left             int64 // before the chats, as the headers show it
	limit            int64
}

// overspend returns the tokens beyond the limit.
func (t *tally) overspend() int64 { return max(0, t.used-t.limit) }

// playChats spends a tenant's budget with reservations, and then another's without. It returns an error if the first is
// overspent, or the second is not.
func playChats(ctx context.Context, url string, llm *model, logEvents func() int64, out io.Writer) error {
	transport := &http.Transport{MaxIdleConnsPerHost: chatsAtOnce}
	defer transport.CloseIdleConnections()
	client := &http.Client{Timeout: chatTimeout, Transport: transport}
	s := &chatSession{session: session{url: url, out: out, client: client}, llm: llm, logEvents: logEvents}
	most := chat.promptTokens() + chat.MaxTokens
	fmt.Fprintf(out, "%d chats at once, each of up to %d tokens, until a whole round is denied\n\n", chatsAtOnce, most)
	fmt.Fprintf(out, "acme reserves %d tokens for a chat, and settles after the answer\n", most)
	reserving, err := s.spend(ctx, "acme", most)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "beta counts after the answer (reserves 1 token)")
	counting, err := s.spend(ctx, "beta", 1)
	if err != nil {
		return err
	}
	if n := reserving.overspend(); n > 0 {
		return fmt.Errorf("acme overspent its budget by %d tokens in spite of reservations", n)
	}
	if counting.overspend() == 0 {
		return errors.New("beta did not overspend its budget: the comparison shows nothing")
	}
	return nil
}

// spend sends rounds of chats of a tenant until one is wholly denied. reserves is the number of tokens that the
// tenant's limit reserves for a chat.
func (s *chatSession) spend(ctx context.Context, tenant string, reserves int64) (sum tally, err error) {
	fmt.Fprintln(s.out, "  round     left  admitted  denied  reserved     used  returned  charged after")
	for round := 1; round <= maxRounds; round++ {
		t, err := s.round(ctx, tenant, reserves)
		if err != nil {
			return sum, fmt.Errorf("%s, round %d: %w", tenant, round, err)
		}
		fmt.Fprintf(s.out, "  %5d  %7d  %8d  %6d  %8d  %7d  %8d  %13d\n", round, t.left, t.admitted, t.denied, t.reserved,
			t.used, max(0, t.reserved-t.used), max(0, t.used-t.reserved))
		if left := max(0, t.limit-sum.used); t.left != left {
			return sum, fmt.Errorf("%s, round %d: the headers show %d tokens left, want %d", tenant, round, t.left, left)
		}
		sum.add(t)
		if sum.admitted == 0 {
			return sum, fmt.Errorf("%s: no chat was admitted", tenant)
		}
		if t.admitted == 0 {
			fmt.Fprintf(s.out, "  %d chats used %d tokens of %d: overspend %d\n\n",
				sum.admitted, sum.used, sum.limit, sum.overspend())
			return sum, nil
		}
	}
	return sum, fmt.Errorf("%s: chats are still admitted after %d rounds, %d tokens of %d",
		tenant, maxRounds, sum.used, sum.limit)
}

func (t *tally) add(u tally) {
	t.admitted += u.admitted
	t.denied += u.denied
	t.reserved += u.reserved
	t.used += u.used
	t.limit = u.limit
}

// round sends concurrent chats, and waits until they are settled.
func (s *chatSession) round(ctx context.Context, tenant string, reserves int64) (tally, error) {
	ctx, end := context.WithTimeout(ctx, chatTimeout)
	defer end()
	ctx, fail := context.WithCancelCause(ctx) // the chats of a round wait for each other
	defer fail(nil)
	s.llm.beginRound(chatsAtOnce)
	var replies [chatsAtOnce]chatReply
	var group sync.WaitGroup
	for i := range chatsAtOnce {
		group.Go(func() {
			var err error
			if replies[i], err = s.sendChat(ctx, tenant); err != nil {
				fail(err)
			}
		})
	}
	group.Wait()
	if err := context.Cause(ctx); err != nil {
		return tally{}, err
	}
	s.sent += chatsAtOnce
	t := tally{limit: replies[0].limit}
	for _, r := range replies {
		t.count(r, reserves)
	}
	return t, s.awaitLogPhases(ctx)
}

// count adds a chat, and raises left to what there was before its reservation.
func (t *tally) count(r chatReply, reserves int64) {
	if !r.admitted {
		t.denied++
		t.left = max(t.left, r.remaining)
		return
	}
	t.admitted++
	t.reserved += reserves
	t.used += r.used
	t.left = max(t.left, r.remaining+reserves)
}

// sendChat sends a chat.
func (s *chatSession) sendChat(ctx context.Context, tenant string) (r chatReply, err error) {
	body, err := json.Marshal(chat)
	if err != nil {
		return r, err
	}
	c := call{tenant, http.MethodPost, "/v1/chat/completions", string(body), map[string]string{
		"apikey": tenant + "-key", "Content-Type": "application/json",
		"X-Max-Tokens": strconv.FormatInt(chat.promptTokens()+chat.MaxTokens, 10),
	}}
	answer, err := s.send(ctx, c)
	if err != nil {
		return r, err
	}
	if answer.status == http.StatusTooManyRequests {
		s.llm.deny()
		err = expectDenial(c, answer)
	} else if err = expectLimited(c, answer, http.StatusOK); err == nil {
		r.admitted = true
		r.used, err = answer.number(tokensUsed)
	}
	if err != nil {
		return r, err
	}
	r.limit, err = answer.number("X-RateLimit-Limit")
	if err != nil {
		return r, err
	}
	r.remaining, err = answer.number("X-RateLimit-Remaining")
	return r, err
}

// awaitLogPhases returns when the log phases of all chats are over.
func (s *chatSession) awaitLogPhases(ctx context.Context) error {
	ticker := time.NewTicker(logPoll)
	defer ticker.Stop()
	for s.logEvents() < s.sent {
		select {
		case <-ctx.Done():
			return fmt.Errorf("the log phases of %d chats are over, of %d: %w", s.logEvents(), s.sent, ctx.Err())
		case <-ticker.C:
		}
	}
	return nil
}
