package server

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/forward"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
)

// parseProxies returns the proxies of a list.
func parseProxies(t *testing.T, text string) (list Proxies) {
	t.Helper()
	require.NoError(t, ParseProxies(text, &list))
	return list
}

func TestTheClientBehindTrustedProxiesIsTheRightMostOtherAddress(t *testing.T) {
	proxies := parseProxies(t, "10.0.0.0/8, 2001:db8:f::/48,192.0.2.9,::ffff:172.16.0.0/108,fe80::/10")
	for name, c := range map[string]struct {
		peer      string
		forwarded []string
		want      string
	}{
		"no proxy":                      {"203.0.113.1:5", nil, "203.0.113.1:5"},
		"a forged header":               {"203.0.113.1:5", []string{"198.51.100.7"}, "203.0.113.1:5"},
		"an address beside a trusted":   {"192.0.2.8:5", []string{"198.51.100.7"}, "192.0.2.8:5"},
		"a proxy":                       {"10.1.2.3:5", []string{"198.51.100.7"}, "198.51.100.7:0"},
		"a proxy of one address":        {"192.0.2.9:5", []string{"198.51.100.7"}, "198.51.100.7:0"},
		"a proxy without the header":    {"10.1.2.3:5", nil, "10.1.2.3:5"},
		"a proxy with an empty header":  {"10.1.2.3:5", []string{""}, "10.1.2.3:5"},
		"forged, through a proxy":       {"10.1.2.3:5", []string{"1.1.1.1, 198.51.100.7"}, "198.51.100.7:0"},
		"a chain of two":                {"10.1.2.3:5", []string{"1.1.1.1,198.51.100.7 ,\t10.9.9.9"}, "198.51.100.7:0"},
		"a chain of two in lines":       {"10.1.2.3:5", []string{"1.1.1.1", "198.51.100.7", "10.9.9.9"}, "198.51.100.7:0"},
		"a chain of proxies alone":      {"10.1.2.3:5", []string{"10.7.7.7, 10.8.8.8, 10.9.9.9"}, "10.7.7.7:0"},
		"text ends the list":            {"10.1.2.3:5", []string{"198.51.100.7, unknown, 10.9.9.9"}, "10.9.9.9:0"},
		"an empty item ends the list":   {"10.1.2.3:5", []string{"198.51.100.7,, 10.9.9.9"}, "10.9.9.9:0"},
		"an empty line ends the list":   {"10.1.2.3:5", []string{"198.51.100.7", "", "10.9.9.9"}, "10.9.9.9:0"},
		"two items without a comma":     {"10.1.2.3:5", []string{"198.51.100.7 198.51.100.8"}, "10.1.2.3:5"},
		"a port":                        {"10.1.2.3:5", []string{"198.51.100.7:4711"}, "198.51.100.7:4711"},
		"a wrong port":                  {"10.1.2.3:5", []string{"198.51.100.7:65536"}, "10.1.2.3:5"},
		"IPv6":                          {"[2001:db8:f::1]:5", []string{"2001:db8:a::2, 2001:db8:f::2"}, "[2001:db8:a::2]:0"},
		"IPv6 in brackets":              {"10.1.2.3:5", []string{"[2001:db8:a::2]"}, "[2001:db8:a::2]:0"},
		"IPv6 with a port":              {"10.1.2.3:5", []string{"[2001:db8:a::2]:4711"}, "[2001:db8:a::2]:4711"},
		"half a bracket":                {"10.1.2.3:5", []string{"[2001:db8:a::2"}, "10.1.2.3:5"},
		"IPv4 in brackets":              {"10.1.2.3:5", []string{"[198.51.100.7]"}, "10.1.2.3:5"},
		"a zone of the proxy":           {"[fe80::1%eth0]:5", []string{"198.51.100.7"}, "198.51.100.7:0"},
		"a zone of the client":          {"10.1.2.3:5", []string{"2001:db8:a::2%eth0"}, "[2001:db8:a::2]:0"},
		"an IPv4 proxy in IPv6":         {"[::ffff:10.1.2.3]:5", []string{"198.51.100.7"}, "198.51.100.7:0"},
		"a network of IPv4 in IPv6":     {"172.31.0.1:5", []string{"198.51.100.7"}, "198.51.100.7:0"},
		"an address beside that":        {"172.32.0.1:5", []string{"198.51.100.7"}, "172.32.0.1:5"},
		"a client of IPv4 in IPv6":      {"10.1.2.3:5", []string{"::ffff:198.51.100.7"}, "198.51.100.7:0"},
		"a forged loopback, by a proxy": {"10.1.2.3:5", []string{"127.0.0.1, 198.51.100.7"}, "198.51.100.7:0"},
	} {
		if got := proxies.clientOf(netip.MustParseAddrPort(c.peer), c.forwarded); got.String() != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestAListOfProxiesThatIsInvalidNamesTheItem(t *testing.T) {
	for text, want := range map[string]string{
		"":                      `"" must be a network`,
		"10.0.0.0/8,":           `"" must be a network`,
		"10.0.0.0/8 10.1.0.0/8": `"10.0.0.0/8 10.1.0.0/8" must be a network`,
		"10.0.0.0/33":           `"10.0.0.0/33" must be a network`,
		"10.0.0.1/8":            `"10.0.0.1/8" must be a network`, // one proxy, or all of its network?
		"::ffff:10.0.0.1/104":   `"::ffff:10.0.0.1/104" must be a network`,
		"fe80::1%eth0":          `"fe80::1%eth0" must be a network`,
		"lb.internal":           `"lb.internal" must be a network`,
		"10.0.0.0/8, 0.0.0.0/0": `"0.0.0.0/0" has all addresses`,
		"::/0":                  `"::/0" has all addresses`,
		"::ffff:0:0/96":         `"::ffff:0:0/96" has all addresses`,
	} {
		before := Proxies{netip.MustParsePrefix("192.0.2.0/24")}
		if err := ParseProxies(text, &before); err == nil || !strings.Contains(err.Error(), want) || len(before) != 1 {
			t.Errorf("%q: %v and %v, want %s", text, err, before, want)
		}
	}
}

// storedTokens authenticates by the tokens of a database, and reads them for each request.
type storedTokens struct{ *rows.DB }

func (s storedTokens) Authenticate(ctx context.Context, secret string) (api.Caller, error) {
	all, err := s.Secrets(ctx)
	if err != nil {
		return api.Caller{}, err
	}
	token, err := all.Token(secret)
	if err != nil {
		return api.Caller{}, api.ErrUnknownToken
	}
	return api.Caller{Token: token.Name, Role: api.Role(token.Role), Org: token.Org}, nil
}

// guarded is the API over a real Postgres, with limits of its own.
type guarded struct {
	*testing.T
	store  *rows.DB
	server *api.Server
}

func openGuarded(t *testing.T) *guarded {
	t.Helper()
	store := rows.New(pgtest.Pool(t, pgtest.Shared(t).Database(t)))
	server, err := api.New(api.Options{
		Rows: store, Tokens: storedTokens{store}, Log: slog.New(slog.DiscardHandler),
		Limits: memory.New(memory.Options{Now: process.BucketClock.Now}),
	})
	require.NoError(t, err)
	return &guarded{t, store, server}
}

// token creates a token and returns its secret.
func (g *guarded) token(name string) string {
	g.Helper()
	secret, _, err := g.store.CreateToken(g.Context(), rows.Change{Actor: "ann", Reason: "a test"},
		rows.NewToken{Name: name, Role: rows.RoleAdmin})
	require.NoError(g, err)
	return secret
}

// request sends a request with a token from an address, and returns the response.
func (g *guarded) request(secret, from string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/v1/ratelimit/policies", http.NoBody)
	r.RemoteAddr = from
	r.Header.Set("Authorization", "Bearer "+secret)
	r.Header.Set("X-Forwarded-For", rand.Text()) // must be ignored
	recorder := httptest.NewRecorder()
	g.server.ServeHTTP(recorder, r)
	return recorder
}

// secretOf returns the secret of a name.
func secretOf(name string) string {
	random := sha256.Sum256([]byte(name))
	return "rl_" + base64.RawURLEncoding.EncodeToString(random[:])
}

func TestGuessesFromOneAddressAreDeniedBeyondItsLimitAndEndNoTokenBehindIt(t *testing.T) {
	g := openGuarded(t)
	for name, from := range map[string]func(int) string{
		"an-address":        func(i int) string { return fmt.Sprint("192.0.2.1:", 1+i) },
		"a-network":         func(i int) string { return fmt.Sprintf("[2001:db8::%x:%x]:1", i, i) },
		"an-address-mapped": func(i int) string { return fmt.Sprint("[::ffff:198.51.100.7]:", 1+i) },
	} {
		statuses, begun := map[int]int{}, time.Now()
		for i := range 100 {
			statuses[g.request(secretOf(from(i)), from(i)).Code]++
		}
		most := 60 + int(time.Since(begun).Seconds()) + 1
		if n := statuses[http.StatusUnauthorized]; n < 60 || n > most || n+statuses[http.StatusTooManyRequests] != 100 {
			t.Errorf("%s: of 100 guesses at most %d may be a 401, and the others a 429: %v", name, most, statuses)
		}
		if a := g.request(g.token(name), from(1)); a.Code != http.StatusOK {
			t.Errorf("%s: a token has %d %s", name, a.Code, a.Body)
		}
	}
}

// post sends the sign-in form to a handler as a proxy does for a client, and returns the status.
func post(h http.Handler, peer, client, secret string) int {
	r := httptest.NewRequest("POST", "/portal/sign-in", strings.NewReader(url.Values{"token": {secret}}.Encode()))
	r.RemoteAddr = peer
	for name, value := range map[string]string{
		"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin",
		"X-Forwarded-Proto": "https", "X-Forwarded-For": client,
	} {
		r.Header.Set(name, value)
	}
	a := httptest.NewRecorder()
	h.ServeHTTP(a, r)
	return a.Code
}

func TestSignInsBehindATrustedProxyHaveABudgetOfGuessesForEachClient(t *testing.T) {
	g := openGuarded(t)
	s := Settings{TrustedProxies: parseProxies(t, "10.0.0.0/8"), Portal: Portal{On: true}}
	pages, err := s.newPortal(g.server, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	h := s.httpServer(g.server, pages, nil).Handler
	const proxy, other = "10.0.0.1:5", "203.0.113.1:5"
	// Of 70 guesses 60 are answered, and one more for each second that they take.
	guesses := func(t *testing.T, from, client func(int) string) {
		t.Helper()
		limited, begin := 0, time.Now()
		for i := range 70 {
			switch status := post(h, from(i), client(i), secretOf(from(i)+client(i))); status {
			case http.StatusTooManyRequests:
				limited++
			case http.StatusForbidden:
			default:
				t.Fatalf("a guess: %d", status)
			}
		}
		if least := 9 - int(time.Since(begin).Seconds()); limited > 10 || limited < least {
			t.Errorf("%d of 70 guesses are limited, want %d to 10", limited, least)
		}
	}
	is := func(text string) func(int) string { return func(int) string { return text } }
	forged := func(end string) func(int) string {
		return func(i int) string { return fmt.Sprintf("198.51.100.%d%s", i, end) }
	}
	secret := g.token("ann")
	guesses(t, is(proxy), forged(", 192.0.2.1"))
	for _, client := range []string{"192.0.2.1", "192.0.2.2"} {
		if status := post(h, proxy, client, secret); status != http.StatusSeeOther {
			t.Errorf("a sign-in of the client %s of the proxy: %d, want 303", client, status)
		}
	}
	guesses(t, is(other), forged(""))
}

func TestOnlyTheProxiesOfForwardAuthAskAndNotThoseInFrontOfTheAPI(t *testing.T) {
	mapping, err := forward.ParseMapping([]byte("tenant_from: [header.X-Tenant]"))
	require.NoError(t, err)
	var s *Settings
	d := deciding(t, strings.Replace(onPort(t, 1), "strategy: redis", "strategy: local", 1), func(changed *Settings) {
		s = changed
		s.NoDatabase, s.Forward = true, mapping
		s.TrustedProxies, s.ForwardProxies = parseProxies(t, "10.0.0.0/8"), parseProxies(t, "192.0.2.1")
	})
	server, err := s.assemble(d, nil, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	for peer, want := range map[string]int{
		"192.0.2.1:5": http.StatusOK, "10.0.0.1:5": http.StatusNotFound, "192.0.2.2:5": http.StatusNotFound,
	} {
		r := httptest.NewRequest(http.MethodGet, forward.Path, http.NoBody)
		r.RemoteAddr = peer
		r.Header.Set("X-Tenant", "victim")
		r.Header.Set("X-Forwarded-For", "192.0.2.1")
		got := httptest.NewRecorder()
		server.http.Handler.ServeHTTP(got, r)
		if got.Code != want {
			t.Errorf("%s asks: %d %s, want %d", peer, got.Code, got.Body, want)
		}
	}
}
