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

// chat is what every chat sends, to one of the models.
var chat = chatRequest{
	Messages: []chatMessage{
		{Role: "system", Content: "You are an assistant of the records team."},
		{Role: "user", Content: "Summarise the records of last week."},
	},
	MaxTokens: 8000,
}

// mostOf returns the most that a chat with a model can cost, in µUSD.
func mostOf(m *priced) int64 { return m.cost(chat.promptTokens(), chat.MaxTokens) }

// usd returns µUSD as dollars.
func usd(micro int64) string { return fmt.Sprintf("%d.%06d", micro/1_000_000, micro%1_000_000) }

// chatSession plays rounds of concurrent chats, and prints what they reserved and used.
type chatSession struct {
	session
	llm       *modelServer
	logEvents func() int64 // log phases that are over
	sent      int64        // chats
}

// tally sums chats, or is that of one. Amounts are in µUSD.
type tally struct {
	admitted, denied int
	reserved, used   int64
	left             int64 // before the chats, as the headers show it
	limit            int64
}

// overspend returns what was spent beyond the limit.
func (t *tally) overspend() int64 { return max(0, t.used-t.limit) }

// playChats spends a tenant's budget with reservations, and then another's without. It returns an error if the first is
// overspent, or the second is not.
func playChats(ctx context.Context, url string, llm *modelServer, logEvents func() int64, out io.Writer) error {
	transport := &http.Transport{MaxIdleConnsPerHost: chatsAtOnce}
	defer transport.CloseIdleConnections()
	client := &http.Client{Timeout: chatTimeout, Transport: transport}
	s := &chatSession{session: session{url: url, out: out, client: client}, llm: llm, logEvents: logEvents}
	fmt.Fprintf(out, "%d chats at once, with two models in turn, until a whole round is denied:\n", chatsAtOnce)
	for _, m := range models {
		fmt.Fprintf(out, "  %-12s  at most %s USD a chat\n", m.name, usd(mostOf(&m)))
	}
	fmt.Fprintln(out, "\nacme has 1 USD. It reserves the most that a chat can cost, and settles after the answer")
	reserving, err := s.spend(ctx, "acme", mostOf)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "beta has 1 USD. It counts after the answer (reserves 1 µUSD)")
	counting, err := s.spend(ctx, "beta", func(*priced) int64 { return 1 })
	if err != nil {
		return err
	}
	if n := reserving.overspend(); n > 0 {
		return fmt.Errorf("acme overspent its budget by %s USD in spite of reservations", usd(n))
	}
	if counting.overspend() == 0 {
		return errors.New("beta did not overspend its budget: the comparison shows nothing")
	}
	return nil
}

// spend sends rounds of chats of a tenant until one is wholly denied. reserves returns what the tenant's limit reserves
// for a chat with a model.
func (s *chatSession) spend(ctx context.Context, tenant string, reserves func(*priced) int64) (sum tally, err error) {
	fmt.Fprintln(s.out, "  round      left  admitted  denied  reserved      used  returned  charged after")
	for round := 1; round <= maxRounds; round++ {
		t, err := s.round(ctx, tenant, reserves)
		if err != nil {
			return sum, fmt.Errorf("%s, round %d: %w", tenant, round, err)
		}
		fmt.Fprintf(s.out, "  %5d  %s  %8d  %6d  %s  %s  %s  %13s\n", round, usd(t.left), t.admitted, t.denied,
			usd(t.reserved), usd(t.used), usd(max(0, t.reserved-t.used)), usd(max(0, t.used-t.reserved)))
		if left := max(0, t.limit-sum.used); t.left != left {
			return sum, fmt.Errorf("%s, round %d: the headers show %s USD left, want %s",
				tenant, round, usd(t.left), usd(left))
		}
		sum.add(t)
		if sum.admitted == 0 {
			return sum, fmt.Errorf("%s: no chat was admitted", tenant)
		}
		if t.admitted == 0 {
			fmt.Fprintf(s.out, "  %d chats cost %s USD of %s: overspend %s USD\n\n",
				sum.admitted, usd(sum.used), usd(sum.limit), usd(sum.overspend()))
			return sum, nil
		}
	}
	return sum, fmt.Errorf("%s: chats are still admitted after %d rounds, %s USD of %s",
		tenant, maxRounds, usd(sum.used), usd(sum.limit))
}

func (t *tally) add(u tally) {
	t.admitted += u.admitted
	t.denied += u.denied
	t.reserved += u.reserved
	t.used += u.used
	t.left, t.limit = max(t.left, u.left), u.limit
}

// round sends concurrent chats, and waits until they are settled.
func (s *chatSession) round(ctx context.Context, tenant string, reserves func(*priced) int64) (sum tally, err error) {
	ctx, end := context.WithTimeout(ctx, chatTimeout)
	defer end()
	ctx, fail := context.WithCancelCause(ctx) // the chats of a round wait for each other
	defer fail(nil)
	s.llm.beginRound(chatsAtOnce)
	var chats [chatsAtOnce]tally
	var group sync.WaitGroup
	for i := range chatsAtOnce {
		group.Go(func() {
			var err error
			m := &models[i%len(models)]
			if chats[i], err = s.sendChat(ctx, tenant, m, uint(i), reserves(m)); err != nil {
				fail(err)
			}
		})
	}
	group.Wait()
	if err := context.Cause(ctx); err != nil {
		return sum, err
	}
	s.sent += chatsAtOnce
	for _, t := range chats {
		sum.add(t)
	}
	return sum, s.awaitLogPhases(ctx)
}

// sendChat sends a chat to a model. X-Max-Cost is what something in front of Kong would send.
func (s *chatSession) sendChat(
	ctx context.Context, tenant string, m *priced, seed uint, reserved int64,
) (t tally, err error) {
	asked := chat
	asked.Model, asked.Seed = m.name, seed
	body, err := json.Marshal(asked)
	if err != nil {
		return t, err
	}
	c := call{tenant, http.MethodPost, "/v1/chat/completions", string(body), map[string]string{
		"apikey": tenant + "-key", "Content-Type": "application/json", "X-Max-Cost": strconv.FormatInt(mostOf(m), 10),
	}}
	answer, err := s.send(ctx, c)
	if err != nil {
		return t, err
	}
	if answer.status == http.StatusTooManyRequests {
		s.llm.decide()
		t.denied, err = 1, expectDenial(c, answer)
	} else if err = expectLimited(c, answer, http.StatusOK); err == nil {
		t.admitted, t.reserved = 1, reserved
		prompt, noPrompt := answer.number(promptUsed)
		completion, noCompletion := answer.number(completionUsed)
		t.used, err = m.cost(prompt, completion), errors.Join(noPrompt, noCompletion)
	}
	t.limit, _ = answer.number("X-RateLimit-Limit") // expectLimited has read both
	remaining, _ := answer.number("X-RateLimit-Remaining")
	t.left = remaining + t.reserved
	return t, err
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
