package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const (
	// burstTries is more than the essentials tier admits at once.
	burstTries = 20
	// anonymousTries is more than the limit of an address in a minute.
	anonymousTries = 80
	// callTimeout bounds one request of the session.
	callTimeout = 10 * time.Second
	// acmeSecret is the secret of acme's jwt credential in kong.yml.
	acmeSecret = "acme-demo-secret-of-32-characters"
	// longestWait is more than any Retry-After of this session.
	longestWait = 10 * time.Second
)

// session sends requests to the gateway, prints them, and returns an error for an unexpected answer.
type session struct {
	url    string
	out    io.Writer
	client *http.Client
}

// call is a request of the session; who names its sender in the output.
type call struct {
	who, method, path string
	header            map[string]string
}

// reply is the answer to a call.
type reply struct {
	status int
	header http.Header
	body   string
}

func playSession(ctx context.Context, url string, out io.Writer) error {
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	s := &session{url: url, out: out, client: &http.Client{Timeout: callTimeout, Transport: transport}}
	for _, step := range []struct {
		title string
		play  func(context.Context) error
	}{
		{"Three tenants of three tiers, and one without limits", s.tenants},
		{"A user of acme by a verified token; a forged one", s.tokens},
		{"A burst over the limit of the essentials tier", s.burst},
		{"Requests without a consumer, limited by address", s.anonymous},
	} {
		fmt.Fprintln(out, step.title)
		if err := step.play(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.title, err)
		}
		fmt.Fprintln(out)
	}
	return nil
}

func (s *session) tenants(ctx context.Context) error {
	for _, c := range []call{
		{"acme (enterprise)", "GET", "/records", map[string]string{"apikey": "acme-key", "X-User-Id": "u_1"}},
		{"beta (essentials)", "GET", "/records", map[string]string{"apikey": "beta-key"}},
		{"gamma (unlimited)", "GET", "/records", map[string]string{"apikey": "gamma-key"}},
	} {
		r, err := s.show(ctx, c)
		if err != nil {
			return err
		}
		if err := expectLimited(c, r, http.StatusOK); err != nil {
			return err
		}
	}
	ops := call{"ops (internal)", "GET", "/records", map[string]string{"apikey": "ops-key"}}
	r, err := s.show(ctx, ops)
	if err != nil {
		return err
	}
	if r.status != http.StatusOK {
		return fmt.Errorf("%s: status %d, want 200", ops.who, r.status)
	}
	if limit := r.header.Get("X-RateLimit-Limit"); limit != "" {
		return fmt.Errorf("%s: X-RateLimit-Limit: %s, want none", ops.who, limit)
	}
	return nil
}

func (s *session) tokens(ctx context.Context) error {
	for _, caller := range []struct {
		who, secret string
		want        int
	}{
		{"acme, token of u_2", acmeSecret, http.StatusOK},
		{"a forged token", "a-made-up-secret-of-32-characters", http.StatusUnauthorized},
	} {
		token, err := signedToken("acme-issuer", caller.secret)
		if err != nil {
			return err
		}
		r, err := s.show(ctx, call{caller.who, "GET", "/account", map[string]string{"Authorization": "Bearer " + token}})
		if err != nil {
			return err
		}
		if r.status != caller.want {
			return fmt.Errorf("%s: status %d, want %d", caller.who, r.status, caller.want)
		}
	}
	return nil
}

// signedToken returns a token of the user u_2, good for an hour.
func signedToken(issuer, secret string) (string, error) {
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"iss": issuer, "sub": "u_2", "exp": time.Now().Add(time.Hour).Unix(),
	}).SignedString([]byte(secret))
	if err != nil {
		return "", fmt.Errorf("sign a token: %w", err)
	}
	return token, nil
}

// burst sends requests until one is denied, waits for Retry-After, and sends one that is admitted.
func (s *session) burst(ctx context.Context) error {
	c := call{"beta (essentials)", "GET", "/records", map[string]string{"apikey": "beta-key"}}
	admitted := 0
	var r reply
	for range burstTries {
		var err error
		if r, err = s.show(ctx, c); err != nil {
			return err
		}
		if r.status != http.StatusOK {
			break
		}
		admitted++
	}
	if err := expectDenial(c, r); err != nil {
		return err
	}
	if admitted < 3 {
		return fmt.Errorf("only %d requests admitted of a burst of 5", admitted)
	}
	s.printDenial(r)
	seconds, err := strconv.Atoi(r.header.Get("Retry-After"))
	if err != nil {
		return fmt.Errorf("Retry-After: %w", err)
	}
	wait := time.Duration(seconds) * time.Second
	if wait > longestWait {
		return fmt.Errorf("Retry-After asks for %s", wait)
	}
	fmt.Fprintf(s.out, "  … waiting %s for Retry-After …\n", wait)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	if r, err = s.show(ctx, c); err != nil {
		return err
	}
	return expectLimited(c, r, http.StatusOK)
}

func (s *session) anonymous(ctx context.Context) error {
	c := call{"anonymous", "GET", "/records", nil}
	r, err := s.show(ctx, c)
	if err != nil {
		return err
	}
	if err := expectLimited(c, r, http.StatusOK); err != nil {
		return err
	}
	more := 0
	for more < anonymousTries && r.status == http.StatusOK {
		if r, err = s.send(ctx, c); err != nil {
			return err
		}
		more++
	}
	fmt.Fprintf(s.out, "  … %d more …\n", more-1)
	s.printLine(c, r)
	return expectDenial(c, r)
}

func (s *session) show(ctx context.Context, c call) (reply, error) {
	r, err := s.send(ctx, c)
	if err == nil {
		s.printLine(c, r)
	}
	return r, err
}

func (s *session) send(ctx context.Context, c call) (reply, error) {
	return s.sendBody(ctx, c, "")
}

// sendBody sends a call with a body.
func (s *session) sendBody(ctx context.Context, c call, body string) (reply, error) {
	request, err := http.NewRequestWithContext(ctx, c.method, s.url+c.path, strings.NewReader(body))
	if err != nil {
		return reply{}, fmt.Errorf("%s: %w", c.who, err)
	}
	for name, value := range c.header {
		request.Header.Set(name, value)
	}
	response, err := s.client.Do(request)
	if err != nil {
		return reply{}, fmt.Errorf("%s: %w", c.who, err)
	}
	answer, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return reply{}, fmt.Errorf("%s: read body: %w", c.who, err)
	}
	return reply{response.StatusCode, response.Header, string(answer)}, nil
}

// printLine prints a call and its answer in one line.
func (s *session) printLine(c call, r reply) {
	limits := "no rate limit headers"
	if limit := r.header.Get("X-RateLimit-Limit"); limit != "" {
		limits = fmt.Sprintf("%s of %s left", r.header.Get("X-RateLimit-Remaining"), limit)
	}
	if after := r.header.Get("Retry-After"); after != "" {
		limits += ", retry after " + after + " s"
	}
	fmt.Fprintf(s.out, "  %-19s %-4s %-10s → %d   %s\n", c.who, c.method, c.path, r.status, limits)
}

// printDenial prints an answer's rate limit headers and its body.
func (s *session) printDenial(r reply) {
	for _, name := range []string{
		"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "RateLimit-Policy", "RateLimit",
		"Retry-After", "Content-Type",
	} {
		if values := r.header.Values(name); len(values) > 0 {
			fmt.Fprintf(s.out, "    %s: %s\n", name, strings.Join(values, ", "))
		}
	}
	for line := range strings.Lines(strings.TrimSpace(r.body)) {
		fmt.Fprintf(s.out, "    %s\n", strings.TrimRight(line, "\n"))
	}
}

// expectLimited checks an answer that must carry a limit.
func expectLimited(c call, r reply, status int) error {
	if r.status != status {
		return fmt.Errorf("%s: status %d, want %d: %s", c.who, r.status, status, r.body)
	}
	for _, name := range []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"} {
		if _, err := r.number(name); err != nil {
			return fmt.Errorf("%s: %w", c.who, err)
		}
	}
	return nil
}

// number returns the number in a header.
func (r *reply) number(name string) (int64, error) {
	n, err := strconv.ParseInt(r.header.Get(name), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return n, nil
}

// expectDenial checks that an answer is a 429 with a wait and a problem document.
func expectDenial(c call, r reply) error {
	if err := expectLimited(c, r, http.StatusTooManyRequests); err != nil {
		return err
	}
	if after, err := strconv.Atoi(r.header.Get("Retry-After")); err != nil || after < 1 {
		return fmt.Errorf("%s: Retry-After: %q", c.who, r.header.Get("Retry-After"))
	}
	var problem struct {
		Title, Detail, Message string
	}
	if err := json.Unmarshal([]byte(r.body), &problem); err != nil {
		return fmt.Errorf("%s: body of the denial: %w", c.who, err)
	}
	if problem.Title == "" || problem.Message == "" {
		return fmt.Errorf("%s: body of the denial: %s", c.who, r.body)
	}
	return nil
}
