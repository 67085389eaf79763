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
	who, method, path, body string
	header                  map[string]string
}

// get returns a call without a body, with a header.
func get(who, path, name, value string) call {
	return call{who: who, method: http.MethodGet, path: path, header: map[string]string{name: value}}
}

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
	return errors.Join(
		s.expect(ctx, get("acme (enterprise)", "/records", "apikey", "acme-key"), http.StatusOK, true),
		s.expect(ctx, get("beta (essentials)", "/records", "apikey", "beta-key"), http.StatusOK, true),
		s.expect(ctx, get("gamma (unlimited)", "/records", "apikey", "gamma-key"), http.StatusOK, true),
		s.expect(ctx, get("ops (internal)", "/records", "apikey", "ops-key"), http.StatusOK, false),
	)
}

func (s *session) tokens(ctx context.Context) error {
	good, err := signedToken("acme-issuer", acmeSecret)
	if err != nil {
		return err
	}
	forged, err := signedToken("acme-issuer", "a-made-up-secret-of-32-characters")
	if err != nil {
		return err
	}
	return errors.Join(
		s.expect(ctx, get("acme, token of u_2", "/account", "Authorization", "Bearer "+good), http.StatusOK, true),
		s.expect(ctx, get("a forged token", "/account", "Authorization", "Bearer "+forged), http.StatusUnauthorized, false),
	)
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
	c := get("beta (essentials)", "/records", "apikey", "beta-key")
	admitted, r, err := flood(ctx, c, s.show, burstTries)
	if err == nil && admitted < 3 {
		err = fmt.Errorf("only %d requests admitted of a burst of 5", admitted)
	}
	if err != nil {
		return err
	}
	s.printDenial(r)
	seconds, _ := r.number("Retry-After") // expectDenial has read it
	wait := time.Duration(seconds) * time.Second
	if wait > longestWait {
		return fmt.Errorf("Retry-After asks for %s", wait)
	}
	fmt.Fprintf(s.out, "  … waiting %s for Retry-After …\n", wait)
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return ctx.Err()
	}
	return s.expect(ctx, c, http.StatusOK, true)
}

func (s *session) anonymous(ctx context.Context) error {
	c := call{who: "anonymous", method: http.MethodGet, path: "/records"}
	if err := s.expect(ctx, c, http.StatusOK, true); err != nil {
		return err
	}
	more, r, err := flood(ctx, c, s.send, anonymousTries)
	if err == nil {
		fmt.Fprintf(s.out, "  … %d more …\n", more)
		s.printLine(c, r)
	}
	return err
}

// flood sends a call until it is denied. It returns how many were admitted, and the denial.
func flood(
	ctx context.Context, c call, send func(context.Context, call) (reply, error), tries int,
) (admitted int, r reply, err error) {
	for r, err = send(ctx, c); err == nil && r.status == http.StatusOK && admitted < tries; r, err = send(ctx, c) {
		admitted++
	}
	if err == nil {
		err = expectDenial(c, r)
	}
	return admitted, r, err
}

// expect sends a call, prints it, and returns an error unless the answer has the status, and headers of a limit just if
// it is limited.
func (s *session) expect(ctx context.Context, c call, status int, limited bool) error {
	r, err := s.show(ctx, c)
	switch limit := r.header.Get("X-RateLimit-Limit"); {
	case err != nil:
		return err
	case limited:
		return expectLimited(c, r, status)
	case r.status != status || limit != "":
		return fmt.Errorf("%s: status %d, want %d; X-RateLimit-Limit: %q, want none", c.who, r.status, status, limit)
	}
	return nil
}

func (s *session) show(ctx context.Context, c call) (reply, error) {
	r, err := s.send(ctx, c)
	if err == nil {
		s.printLine(c, r)
	}
	return r, err
}

func (s *session) send(ctx context.Context, c call) (reply, error) {
	request, err := http.NewRequestWithContext(ctx, c.method, s.url+c.path, strings.NewReader(c.body))
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
	if after, err := r.number("Retry-After"); err != nil || after < 1 {
		return fmt.Errorf("%s: Retry-After: %q", c.who, r.header.Get("Retry-After"))
	}
	var problem struct {
		Title, Message string
	}
	if err := json.Unmarshal([]byte(r.body), &problem); err != nil || problem.Title == "" || problem.Message == "" {
		return fmt.Errorf("%s: body of the denial: %s", c.who, r.body)
	}
	return nil
}
