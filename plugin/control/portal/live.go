package portal

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"html/template"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/portal/session"
)

const (
	livePath = home + "live/"
	// pollTime is the time between two polls of a topic.
	pollTime = time.Second
	// pollTimeout bounds one poll.
	pollTimeout = 10 * time.Second
	// checkTime is the time between two checks of a viewer: whether its session lasts, and whether it reads.
	checkTime = 15 * time.Second
	// writeTimeout bounds how long a viewer may take to read an event.
	writeTimeout = 10 * time.Second
	// maxViewers and maxViewersEach bound the viewers of the process, and of one token or tenant. maxTenantViewers bounds
	// those of all tenants, so that operators have room.
	maxViewers       = 1000
	maxViewersEach   = 250
	maxTenantViewers = maxViewers - maxViewersEach
	// maxFeedsEach bounds the feeds of one token or tenant, because each is polled.
	maxFeedsEach = 16
)

// topic is a live part of pages. A page shows it as an element with the attribute data-live, whose value is
// "/portal/live/" with the name and a query, and whose content is the template.
type topic struct {
	Name     string
	For      audience
	Template string                    // such as operator_fleet_rows
	Poll     func(*visit) (any, error) // reads the data of the template from the API; the query is that of the viewer
	Every    time.Duration             // between two polls; 0: pollTime
}

// topics returns all live parts.
func topics() []topic { return append(operatorTopics(), tenantTopics()...) }

// hub sends live parts to their viewers. It polls a topic once for all viewers of it that see the same. It keeps
// nothing for a viewer: one that falls behind gets the newest state, and one that does not read is dropped.
type hub struct {
	portal *Portal
	topics map[string]*topic
	closed chan struct{}
	close  func()
	limit  time.Duration // of the write of one event

	mu    sync.Mutex
	feeds map[feedKey]*feed
	each  map[string]*places // by whose they are
	total int                // viewers

	tenants int // viewers of tenants, of total
}

// places are what one token or tenant has open.
type places struct{ viewers, feeds int }

// feedKey identifies what viewers see.
type feedKey struct{ topic, query, role, org string }

// feed is what the viewers of a topic see.
type feed struct {
	topic   *topic
	caller  Caller
	query   string
	of      *places // of whose viewer was the first
	viewers int     // guarded by hub.mu

	mu      sync.Mutex
	polled  time.Time
	polling bool
	event   []byte // the newest state
	sum     uint64 // of the event
}

func newHub(p *Portal, all []topic) *hub {
	h := &hub{
		portal: p, topics: map[string]*topic{}, closed: make(chan struct{}), limit: writeTimeout,
		feeds: map[feedKey]*feed{}, each: map[string]*places{},
	}
	h.close = sync.OnceFunc(func() { close(h.closed) })
	for _, t := range all {
		h.topics[t.Name] = &t
	}
	return h
}

// serve streams a topic to a viewer until it disconnects, its session ends or the process shuts down.
func (h *hub) serve(w http.ResponseWriter, r *http.Request) {
	who, ok := h.portal.sessions.Read(r) // a page that is left open does not prolong the session
	if !ok {
		http.Error(w, "not signed in", http.StatusUnauthorized)
		return
	}
	caller, err := h.portal.callerOf(r, who)
	t := h.topics[r.PathValue("topic")]
	query, queryErr := url.ParseQuery(r.URL.RawQuery)
	switch {
	case err != nil:
		http.Error(w, "not signed in", http.StatusUnauthorized)
		return
	case t == nil || queryErr != nil:
		http.Error(w, "there is no such live part", http.StatusNotFound)
		return
	case !t.For.includes(caller.Role):
		http.Error(w, "your role does not include this", http.StatusForbidden)
		return
	}
	f, leave := h.join(t, caller, query.Encode())
	if f == nil {
		h.portal.metrics.dropped.WithLabelValues(droppedFull).Inc()
		w.Header().Set("Retry-After", "60")
		http.Error(w, "too many live parts are open", http.StatusServiceUnavailable)
		return
	}
	defer leave()
	header := w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("X-Accel-Buffering", "no") // proxies pass on each event
	if r.Method == http.MethodHead {
		return
	}
	v := &viewer{w: w, control: http.NewResponseController(w), limit: h.limit}
	h.stream(r, v, f, who)
	if v.slow {
		h.portal.metrics.dropped.WithLabelValues(droppedSlow).Inc()
		panic(http.ErrAbortHandler) // closes the connection
	}
}

// stream sends the states of a feed until the viewer has to end.
func (h *hub) stream(r *http.Request, v *viewer, f *feed, who session.Session) {
	if v.control.SetReadDeadline(time.Time{}) != nil || !v.send([]byte("retry: 5000\n\n")) {
		return
	}
	poll, check := time.NewTicker(pollTime), time.NewTicker(checkTime)
	defer poll.Stop()
	defer check.Stop()
	for {
		if event, sum := f.latest(r.Context(), h.portal); sum != v.sum {
			if v.sum = sum; !v.send(event) {
				return
			}
		}
		select {
		case <-poll.C:
		case <-check.C:
			if _, err := h.portal.callerOf(r, who); err != nil || !h.portal.sessions.IsLive(who) || !v.send([]byte(":\n\n")) {
				return
			}
		case <-r.Context().Done():
			return
		case <-h.closed:
			return
		}
	}
}

// viewer is a connection that receives a topic.
type viewer struct {
	w       http.ResponseWriter
	control *http.ResponseController
	limit   time.Duration // of one write
	sum     uint64        // of the last event
	slow    bool          // it did not read in time
}

// send writes an event, and reports whether the viewer reads.
func (v *viewer) send(event []byte) bool {
	if v.control.SetWriteDeadline(time.Now().Add(v.limit)) != nil {
		return false
	}
	_, err := v.w.Write(event)
	if err == nil {
		err = v.control.Flush()
	}
	v.slow = isTimeout(err)
	return err == nil
}

func isTimeout(err error) bool {
	t, ok := err.(interface{ Timeout() bool })
	return ok && t.Timeout()
}

// join adds a viewer of a topic, who must leave. It returns nil if too many are open. A feed is polled under a name of
// the caller who opened it that no token has: the API's own limits count it apart from other feeds and from requests.
func (h *hub) join(t *topic, caller Caller, query string) (*feed, func()) {
	key := feedKey{topic: t.Name, query: query, role: RoleViewer}
	whose, as := "token "+caller.Name, Caller{Name: "portal:" + url.PathEscape(caller.Name), Role: RoleViewer, Poll: true}
	if caller.Role == RoleTenant {
		key.role, key.org = RoleTenant, caller.Org
		whose = "tenant " + caller.Org
		as = Caller{Name: "portal of " + url.PathEscape(caller.Org), Role: RoleTenant, Org: caller.Org, Poll: true}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	own, f := h.each[whose], h.feeds[key]
	if own == nil {
		own = &places{}
	}
	tenantsFull := key.role == RoleTenant && h.tenants >= maxTenantViewers
	switch {
	case h.total >= maxViewers, own.viewers >= maxViewersEach, tenantsFull, f == nil && own.feeds >= maxFeedsEach:
		return nil, nil
	}
	if f == nil {
		f = &feed{topic: t, caller: as, query: query, of: own}
		h.feeds[key] = f
		own.feeds++
	}
	f.viewers++
	own.viewers++
	h.each[whose] = own
	h.count(&key, 1)
	return f, func() { h.leave(key, f, own) }
}

// count adds viewers of a feed. h.mu is held.
func (h *hub) count(key *feedKey, viewers int) {
	h.total += viewers
	if key.role == RoleTenant {
		h.tenants += viewers
	}
	h.portal.metrics.viewers.Set(float64(h.total))
}

// leave removes a viewer.
func (h *hub) leave(key feedKey, f *feed, own *places) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f.viewers--; f.viewers == 0 {
		delete(h.feeds, key)
		f.of.feeds--
	}
	own.viewers--
	maps.DeleteFunc(h.each, func(_ string, p *places) bool { return *p == places{} })
	h.count(&key, -1)
}

// latest returns the newest state of a feed, and polls it if that is due and no other viewer does.
func (f *feed) latest(ctx context.Context, p *Portal) (event []byte, sum uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	every := cmp.Or(f.topic.Every, pollTime) * 9 / 10 // the ticks of viewers are not exact
	if now := time.Now(); !f.polling && now.Sub(f.polled) >= every {
		f.polled, f.polling = now, true
		f.mu.Unlock()
		event := f.poll(context.WithoutCancel(ctx), p) // the other viewers need it too
		f.mu.Lock()
		f.polling = false
		hash := fnv.New64a()
		_, _ = hash.Write(event)
		f.event, f.sum = event, hash.Sum64()
	}
	return f.event, f.sum
}

// poll reads and renders the state of a feed as an event.
func (f *feed) poll(ctx context.Context, p *Portal) []byte {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, livePath+f.topic.Name+"?"+f.query, http.NoBody)
	if err != nil {
		p.Log.Error("polling a live part failed", "topic", f.topic.Name, "error", err)
		return staleEvent
	}
	rows, err := f.rows(&visit{r: r, caller: f.caller, portal: p})
	if err != nil {
		level := slog.LevelWarn
		if problem := asProblem(err); problem != nil && problem.Status < http.StatusInternalServerError {
			level = slog.LevelDebug // a fault of the viewer's query
		}
		p.Log.Log(ctx, level, "polling a live part failed", "topic", f.topic.Name, "error", err)
		return staleEvent
	}
	return encodeEvent("rows", string(rows))
}

// rows returns the rendered state of a feed. A panic of its code is an error, because it must not end the feed.
func (f *feed) rows(v *visit) (rows template.HTML, err error) {
	defer func() {
		if failure := recover(); failure != nil {
			err = fmt.Errorf("panic: %v", failure)
		}
	}()
	data, err := f.topic.Poll(v)
	if err != nil {
		return "", err
	}
	return v.portal.views.fragment(f.topic.Template, data)
}

// staleEvent has a page show that its live part is not the newest state.
var staleEvent = encodeEvent("stale", "")

// encodeEvent returns a server-sent event.
func encodeEvent(name, data string) []byte {
	var b bytes.Buffer
	b.WriteString("event: " + name + "\n")
	for line := range strings.Lines(strings.ReplaceAll(data, "\r", "") + "\n") {
		b.WriteString("data: " + strings.TrimSuffix(line, "\n") + "\n")
	}
	b.WriteString("\n")
	return b.Bytes()
}
