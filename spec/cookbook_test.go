package spec

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// recipes returns the paths of the examples.
func recipes(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob("../kong/examples/*.yml")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	return paths
}

// TestTheRecipesAnswerAsTheirSessionsSay plays the session beside each example: what docs/cookbook shows.
func TestTheRecipesAnswerAsTheirSessionsSay(t *testing.T) {
	t.Parallel()
	for _, path := range recipes(t) {
		name := strings.TrimSuffix(filepath.Base(path), ".yml")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requests, isImported := parseSession(t, file(t, "kong/examples/"+name+".session"))
			deck := file(t, "kong/examples/"+name+".yml")
			if isImported {
				deck = imported(t, deck)
			}
			c := &cook{}
			deck, c.stopRedis = withServers(t, atNoon(time.Now(), deck))
			c.node = start(t, deck, func(o *gateway.Options) {
				o.TrustedIPs = []string{"127.0.0.1"}
				o.Upstreams = map[string]http.Handler{gateway.AnswerHost: c}
				if c.settles = strings.Contains(deck, "tenant-rate-settling"); c.settles {
					o.Servers = append(o.Servers, gateway.PluginServer{
						Info: settlingPlugin(t), Socket: "tenant-rate-settling.socket",
					})
				}
			})
			for _, r := range requests {
				if r.line == redisStops {
					c.stopRedis()
					continue
				}
				c.play(deck, r)
			}
		})
	}
}

func TestTheRecipesHaveNoFaultsAndNoWarnings(t *testing.T) {
	t.Parallel()
	paths := slices.DeleteFunc(recipes(t), func(path string) bool {
		return filepath.Base(path) == "from-rate-limiting.yml" // has none of this plugin
	})
	for i, found := range validated(t, paths) {
		for _, f := range found.Findings {
			t.Errorf("%s: %s: %s: %s", paths[i], f.Severity, f.Path, f.Message)
		}
	}
}

// recipeRequest is a request of a session, and what is expected of it.
type recipeRequest struct {
	line    string // of the session
	atOnce  int    // 0: its requests are sent one after another
	method  string
	path    string
	headers []string // pairs of name and value
	want    []recipeAnswer
}

// recipeAnswer expects a status a number of times, and texts of the last of these answers.
type recipeAnswer struct {
	status, times int
	inTheEnd      bool // other answers may come before
	texts         []string
}

var (
	recipeLine   = regexp.MustCompile(`^(?:(\d+) at once: )?([A-Z]+) (/\S*)(.*)$`)
	recipeStatus = regexp.MustCompile(`^  (\d{3})(?: ×(\d+)|( in the end))?$`)
)

// redisStops is the line of a session that kills the Redis servers.
const redisStops = "! Redis stops"

// parseSession reads the requests of a session. Its first line may import the example, and Redis may stop between two
// requests. Each is a line with its headers after two spaces. Below it are the statuses of its answers, and texts of
// the last one with a status: a header as "Name: value", "no Name", or a part of the body. … stands for any text.
func parseSession(t *testing.T, text string) (all []recipeRequest, isImported bool) {
	t.Helper()
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch status := recipeStatus.FindStringSubmatch(line); {
		case line == "" || line[0] == '#':
		case strings.HasPrefix(line, "$ ratelimit import "):
			isImported = true
		case line == redisStops:
			all = append(all, recipeRequest{line: line})
		case status != nil && all != nil:
			code, _ := strconv.Atoi(status[1]) // the pattern has digits
			times, _ := strconv.Atoi(status[2])
			want := &all[len(all)-1].want
			*want = append(*want, recipeAnswer{status: code, times: max(times, 1), inTheEnd: status[3] != ""})
		case strings.HasPrefix(line, "    ") && all != nil && all[len(all)-1].want != nil:
			want := all[len(all)-1].want
			last := &want[len(want)-1]
			last.texts = append(last.texts, strings.TrimSpace(line))
		default:
			parts := recipeLine.FindStringSubmatch(line)
			if parts == nil {
				t.Fatalf("a line of the session is neither a request nor an answer: %q", line)
			}
			r := recipeRequest{line: line, method: parts[2], path: parts[3]}
			r.atOnce, _ = strconv.Atoi(parts[1])
			for _, header := range strings.Split(parts[4], "  ")[1:] {
				name, value, _ := strings.Cut(header, ": ")
				r.headers = append(r.headers, name, value)
			}
			all = append(all, r)
		}
	}
	require.NotEmpty(t, all)
	return all, isImported
}

// cook plays a session. It is the upstream too.
type cook struct {
	*node
	settles   bool
	stopRedis func()
	sent      int64
	batch     atomic.Pointer[sync.WaitGroup] // of requests that are in flight at once, until each has arrived or is denied
}

// ServeHTTP answers as ServeAnswer, and a request of a batch once the whole batch is decided.
func (c *cook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if batch := c.batch.Load(); batch != nil {
		batch.Done()
		batch.Wait()
	}
	gateway.ServeAnswer(w, r)
}

// play sends the requests of a line of the session, and compares the answers.
func (c *cook) play(deck string, r recipeRequest) {
	for i := 1; i < len(r.headers); i += 2 {
		r.headers[i] = signed(c.t, deck, r.headers[i])
	}
	if r.atOnce > 0 {
		c.playAtOnce(r)
		return
	}
	for _, want := range r.want {
		var a answer
		for range want.times {
			a = c.ask(r)
			for began := time.Now(); want.inTheEnd && !want.fits(a) && time.Since(began) < longest; {
				a = c.ask(r)
			}
			if a.Status != want.status {
				break
			}
		}
		if !want.fits(a) {
			c.t.Errorf("%s\nwant %+v, got %d\n%v\n%.1000s", r.line, want, a.Status, a.Header, a.Body)
		}
	}
}

// playAtOnce sends the requests of a line at once, and counts their statuses.
func (c *cook) playAtOnce(r recipeRequest) {
	var batch, clients sync.WaitGroup
	batch.Add(r.atOnce)
	c.batch.Store(&batch)
	answers := make([]answer, r.atOnce)
	for i := range answers {
		clients.Go(func() {
			answers[i], _ = c.send(r.method, r.path, r.headers...) // without an answer the status is 0
			if answers[i].Header.Get("X-Kong-Upstream-Latency") == "" {
				batch.Done() // it has not reached the upstream
			}
		})
	}
	clients.Wait()
	c.batch.Store(nil)
	c.awaitSettled(int64(r.atOnce))
	for _, want := range r.want {
		fitting := slices.DeleteFunc(slices.Clone(answers), func(a answer) bool { return !want.fits(a) })
		if len(fitting) != want.times {
			c.t.Errorf("%s\nwant %+v, got %d of %.1000v", r.line, want, len(fitting), answers)
		}
	}
}

// ask sends a request, and waits until it is settled.
func (c *cook) ask(r recipeRequest) answer {
	a, err := c.send(r.method, r.path, r.headers...)
	require.NoError(c.t, err)
	c.awaitSettled(1)
	return a
}

// awaitSettled waits until the log phases of n more requests are over.
func (c *cook) awaitSettled(n int64) {
	if c.sent += n; c.settles {
		await.That(c.t, "the log phases", func() bool { return c.Counters().LogEvents.Load() >= c.sent })
	}
}

var headerText = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9-]*): (.*)$`)

// fits reports whether an answer has the status and the texts.
func (w recipeAnswer) fits(a answer) bool {
	for _, text := range w.texts {
		in := a.Body
		if name, absent := strings.CutPrefix(text, "no "); absent && a.Header.Get(name) == "" {
			continue
		}
		if header := headerText.FindStringSubmatch(text); header != nil {
			in, text = a.Header.Get(header[1]), header[2]
			if in == "" {
				return false
			}
		}
		if !regexp.MustCompile(strings.ReplaceAll(regexp.QuoteMeta(text), "…", ".*")).MatchString(in) {
			return false
		}
	}
	return a.Status == w.status
}

// signed replaces JWT {claims} by a token of these claims, with the secret of the file's first credential.
func signed(t testing.TB, deck, value string) string {
	t.Helper()
	before, claims, found := strings.Cut(value, "JWT ")
	if !found {
		return value
	}
	config, err := gateway.ParseConfig([]byte(deck))
	require.NoError(t, err)
	values := jwt.MapClaims{}
	require.NoError(t, json.Unmarshal([]byte(claims), &values))
	secret := config.Consumers[0].Secrets[0].Secret
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, values).SignedString([]byte(secret))
	require.NoError(t, err)
	return before + token
}

// atNoon returns an example whose windows do not end while its session lasts. Those of the calendar are of a zone where
// it is about noon. Those of an hour have a length of which now is between two multiples.
func atNoon(now time.Time, deck string) string {
	zone := fmt.Sprintf("Etc/GMT%+d", now.UTC().Hour()-12) // plus is west of Greenwich
	if !strings.Contains(deck, "time_zone:") {
		deck = regexp.MustCompile(`period: \w+`).ReplaceAllString(deck, "$0, time_zone: "+zone)
	}
	deck = strings.ReplaceAll(deck, "Europe/Berlin", zone)
	middle := now.Unix() * 2 / 20001 // now is 10,000.5 of it
	return strings.ReplaceAll(deck, "window_size: 3600,", fmt.Sprintf("window_size: %d,", middle))
}

// withServers starts the Redis servers that an example names. It returns the example with their addresses, and what
// kills those with buckets.
func withServers(t *testing.T, deck string) (served string, stop func()) {
	t.Helper()
	place := map[string]string{"redis: {": "redis: {" + patience + ", "}
	var buckets []*redistest.Server
	addHosts := func(pattern string, servers []*redistest.Server) {
		for i, s := range servers {
			place[fmt.Sprintf(pattern, i+1)] = fmt.Sprintf("%s, port: %d", s.Host, s.Port)
		}
	}
	switch {
	case strings.Contains(deck, "cluster_nodes"):
		buckets = redistest.Cluster(t, 3, 0).Masters
		addHosts("redis-%d.internal", buckets)
	case strings.Contains(deck, "sentinel_nodes"):
		watched := redistest.Sentinel(t)
		buckets = []*redistest.Server{watched.Master, watched.Replica}
		addHosts("sentinel-%d.internal", watched.Sentinels)
	case strings.Contains(deck, "ssl: true"):
		buckets = []*redistest.Server{secureRedis(t, place)}
	case strings.Contains(deck, "redis: {host: redis.internal}"):
		buckets = []*redistest.Server{redistest.Single(t)}
		place["host: redis.internal"] = "socket: " + buckets[0].Socket
	}
	for from, to := range place {
		deck = strings.ReplaceAll(deck, from, to)
	}
	return deck, func() {
		for _, s := range buckets {
			s.Kill()
		}
	}
}

var aclCommands = regexp.MustCompile(`(?m)^\| ACL: commands \|(.*)$`)

// secureRedis starts a Redis with TLS on both sides and a user with the rights that docs/redis.md lists. It adds to
// place what an example has in place of it. Its secrets are in the environment, where Kong's env vault finds them.
func secureRedis(t *testing.T, place map[string]string) *redistest.Server {
	t.Helper()
	port, dir := freeport.Port(t), t.TempDir()
	certificate, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writeCertificate(t, "redis.internal", certificate, key)
	server := redistest.Single(t, "--tls-port", strconv.Itoa(port), "--tls-auth-clients", "yes",
		"--tls-ca-cert-file", certificate, "--tls-cert-file", certificate, "--tls-key-file", key)
	user := []any{"acl", "setuser", "limiter", "on", ">sesame", "~rl:*"}
	for _, command := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(
		aclCommands.FindString(file(t, "docs/redis.md")), -1) {
		user = append(user, "+"+strings.ReplaceAll(command[1], `\|`, "|"))
	}
	require.NoError(t, server.Client(t).Do(t.Context(), user...).Err())
	for name, value := range map[string]string{
		"REDIS_HOST": server.Host, "REDIS_USERNAME": "limiter", "REDIS_PASSWORD": "sesame",
	} {
		require.NoError(t, os.Setenv(name, value)) // t.Setenv is for tests that run alone
	}
	place["port: 6380"] = "port: " + strconv.Itoa(port)
	place["/etc/kong/redis/ca.pem"], place["/etc/kong/redis/client.pem"] = certificate, certificate
	place["/etc/kong/redis/client.key"] = key
	return server
}

// writeCertificate writes a certificate that signs itself, for a server and for its clients, and its key.
func writeCertificate(t *testing.T, name, certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	for path, block := range map[string]*pem.Block{
		certificate: {Type: "CERTIFICATE", Bytes: signed}, key: {Type: "PRIVATE KEY", Bytes: secret},
	} {
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
	}
}
