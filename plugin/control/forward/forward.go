// Package forward answers the questions of proxies that ask another service before they pass a request on: nginx's
// auth_request, Traefik's ForwardAuth, Caddy's forward_auth. It decides as the plugin does, by the same policies and
// from the same buckets.
//
// A proxy asks with the headers of the request, and a [Mapping] says which of them name whom it is from. An admitted
// request is answered with 200, a denied one with the status, headers and body that the plugin answers Kong's clients
// with.
package forward

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/mapping"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
)

// Path is where proxies ask.
const Path = "/v1/ratelimit/forward-auth"

// statusHeader has the status of a denial that is answered with another one.
const statusHeader = "X-RateLimit-Status"

// Mapping says which headers name whom a request is from.
type Mapping struct{ mapping.Mapping }

// ParseMapping parses a mapping in YAML. The error has the field that is wrong.
func ParseMapping(text []byte) (*Mapping, error) {
	var file map[string]yaml.Node
	if err := yaml.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("must be YAML of the form {tenant_from: [header.X-Tenant]}: %w", err)
	}
	m, err := mapping.Parse("", file, "header.<name>", nil)
	if err == nil && m.IsEmpty() {
		err = errors.New("tenant_from: is required where nothing else is mapped, such as [header.X-Tenant]")
	}
	return &Mapping{m}, err
}

// read fills r with what the headers of a request name. Of a header with several values the client may have sent some,
// also where a proxy has folded them into one by commas.
func (m *Mapping) read(r *admit.CallerRequest, headers http.Header) {
	repeated := ""
	m.Read(r, func(name string, isName bool) string {
		values := headers.Values(name)
		switch {
		case len(values) == 0:
			return ""
		case len(values) == 1 && !(isName && strings.Contains(values[0], ",")):
			return values[0]
		}
		repeated = name
		return ""
	})
	r.Repeated = repeated
}

// Options configures a Door. All fields are required.
type Options struct {
	Mapping *Mapping
	Decider *admit.Decider // its policies are compiled for callers
	// Ready reports whether the policies in force are loaded.
	Ready func() bool
	// ClientOf returns the address of the client that a proxy asks for. It reports whether the peer is a proxy, whose
	// headers are trusted.
	ClientOf func(r *http.Request) (netip.Addr, bool)
	Metrics  prometheus.Registerer
	Log      *slog.Logger
}

// Door is the handler of Path. Create it with New.
type Door struct {
	Options
	memory  sync.Pool // of *exchange
	answers *prometheus.CounterVec
}

// exchange is the memory of one request.
type exchange struct {
	admit.Exchange
	facts admit.CallerRequest
}

// What was answered, in metrics.
const (
	allowed     = "allowed"
	denied      = "denied"
	untrusted   = "untrusted"
	unavailable = "unavailable"
)

// New returns a door.
func New(o Options) *Door {
	d := &Door{Options: o, answers: promauto.With(o.Metrics).NewCounterVec(prometheus.CounterOpts{
		Name: "rate_limiter_forward_auth_answers_total",
		Help: "Answers to proxies that ask before they pass a request on. untrusted: --forward-auth-proxies does not name " +
			"the peer; unavailable: the policies are not loaded yet.",
	}, []string{"answer"})}
	for _, answer := range []string{allowed, denied, untrusted, unavailable} {
		d.answers.WithLabelValues(answer)
	}
	d.memory.New = func() any { return new(exchange) }
	return d
}

// ServeHTTP implements [http.Handler]. It answers what it cannot decide with statuses that nginx takes for errors.
func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	client, trusted := d.ClientOf(r)
	switch {
	case !trusted:
		d.fail(w, untrusted, http.StatusNotFound, "only a proxy that --forward-auth-proxies names may ask")
	case !d.Ready():
		d.fail(w, unavailable, http.StatusServiceUnavailable, admit.WarmingUp)
	default:
		d.decide(w, r, client)
	}
}

// decide answers with the decision. With the query deny=403 a denial has this status, for nginx. Caddy sends the query
// of the client.
func (d *Door) decide(w http.ResponseWriter, r *http.Request, client netip.Addr) {
	x := d.memory.Get().(*exchange)
	defer d.memory.Put(x)
	d.Mapping.read(&x.facts, r.Header)
	if x.facts.IP == "" && client.IsValid() {
		x.facts.IP = client.String()
	}
	// If the end of the question ended a call of Redis, that would count as one that Redis was too slow for.
	if err := d.Decider.Admit(context.WithoutCancel(r.Context()), &x.facts, &x.Exchange); err != nil {
		d.Log.Error("decide a question of a proxy: on_internal_error applies", "error", err)
	}
	header := w.Header()
	for _, h := range x.Response.Headers {
		header.Set(h.Name, string(h.Value))
	}
	if !x.Response.Denied {
		d.answer(w, allowed, http.StatusOK, nil)
		return
	}
	status := x.Response.Status
	if r.URL.RawQuery == "deny=403" {
		header.Set(statusHeader, strconv.Itoa(status))
		status = http.StatusForbidden
	}
	d.answer(w, denied, status, x.Response.Body)
}

// fail answers with a problem document.
func (d *Door) fail(w http.ResponseWriter, answer string, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	body, _ := json.Marshal(map[string]any{ // strings and numbers have a JSON form
		"title": http.StatusText(status), "status": status, "detail": detail,
	})
	d.answer(w, answer, status, body)
}

func (d *Door) answer(w http.ResponseWriter, answer string, status int, body []byte) {
	d.answers.WithLabelValues(answer).Inc()
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // the proxy may have disconnected
}
