package gateway

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// The recording of the log phase is played as a whole: one request after another, in its order, with the plugins doing
// what the recorded ones did. Then every connection must have the frames of the recorded one: which calls Kong made
// there, with which sequence numbers, what it answered, and who closed it.

// logPlay is a gateway with the recorded config, and the plugins "rec" and "rec-log".
type logPlay struct {
	t         *testing.T
	cases     *logCases
	gateway   *Gateway
	instances atomic.Int32

	mu       sync.Mutex
	conns    []*tapConn // in the order of their first frames
	lost     map[string]bool
	begun    map[string]int // events of rec-log by case
	over     map[string]int
	changed  *sync.Cond
	answered bool          // the client of the current case has its response
	calling  chan struct{} // gets one value when the slow upstream is called
}

func TestTheRecordedLogPhaseIsPlayedAsByARealKong(t *testing.T) {
	p := &logPlay{
		t: t, cases: readLogCases(t), lost: map[string]bool{}, begun: map[string]int{}, over: map[string]int{},
		calling: make(chan struct{}, 1),
	}
	p.changed = sync.NewCond(&p.mu)
	p.start()
	for _, name := range p.cases.order {
		p.playCase(name)
	}
	if err := p.gateway.Close(); err != nil {
		t.Error(err)
	}
	p.awaitEnds()
	p.compare()
}

func (p *logPlay) start() {
	p.gateway = start(p.t, Options{
		Config: p.cases.config(p.t), Workers: 1, Upstreams: map[string]http.Handler{"127.0.0.1": p},
		Servers: []PluginServer{
			{Info: logInfo(p.t, "rec", 912, accessPhase), Socket: p.serve(p.act)},
			{Info: logInfo(p.t, "rec-log", 13, logPhase), Socket: p.serve(p.log)},
			{Info: logInfo(p.t, "request-termination", 2, accessPhase), Socket: newFakePlugin(p.t, func(e *fakeEvent) {
				_, _ = e.ask(exitWith(451, "", nil)) // Kong closes
			}).socket()},
		},
	})
}

// serve serves a plugin and records its connections.
func (p *logPlay) serve(onEvent func(*fakeEvent)) (socket string) {
	p.t.Helper()
	listener, err := net.Listen("unix", filepath.Join(p.t.TempDir(), "s"))
	require.NoError(p.t, err)
	fake := serveFake(tapListener{listener, p}, onEvent)
	fake.newID = func() int32 { return p.instances.Add(1) }
	p.t.Cleanup(fake.close)
	return fake.socket()
}

// ServeHTTP is the recorded upstream.
func (p *logPlay) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header()["X-Upstream"], w.Header()["X-Twice"] = []string{"yes"}, []string{"one", "two"}
	w.Header().Set("Content-Type", "text/plain; charset=UTF-8")
	switch path, _, _ := strings.Cut(r.URL.RequestURI(), "?"); path {
	case "/slow":
		p.calling <- struct{}{}
		<-r.Context().Done()
	case "/log-upstream-418":
		w.WriteHeader(http.StatusTeapot)
	case "/chunked": // as many bytes as the recorded chunks with their framing
		w.(http.Flusher).Flush()
		io.WriteString(w, strings.Repeat("x", 30))
	default:
		io.WriteString(w, "ok")
	}
}

// playCase sends the requests of a case and waits for the end of their log events.
func (p *logPlay) playCase(name string) {
	c := p.cases.named[name]
	p.mu.Lock()
	p.answered = false
	p.mu.Unlock()
	switch name {
	case "log-client-closed":
		p.sendAndLeave(c)
	case "log-two-at-once":
		var both sync.WaitGroup
		for range c.requests {
			both.Go(func() { p.send(c) })
		}
		both.Wait()
	default:
		for n := range c.requests {
			p.send(c)
			p.await(name, c.events-c.requests+n+1)
		}
	}
	p.mu.Lock()
	p.answered = true
	p.changed.Broadcast()
	p.mu.Unlock()
	p.await(name, c.events)
}

func (p *logPlay) send(c *logCase) { send(p.t, p.gateway, c.request()...) }

// sendAndLeave closes the connection of the request as soon as the upstream is called.
func (p *logPlay) sendAndLeave(c *logCase) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(p.gateway.URL(), "http://"))
	require.NoError(p.t, err)
	if _, err := io.WriteString(conn, strings.Join(append(c.request(), "", ""), "\r\n")); err != nil {
		p.t.Fatal(err)
	}
	<-p.calling
	require.NoError(p.t, conn.Close())
}

// await returns when so many log events of a case are over, and the gateway has nothing more to do for them. An event
// that waits for the client's response counts too.
func (p *logPlay) await(name string, events int) {
	p.mu.Lock()
	for p.over[name] < events && !(name == "log-slow-plugin" && !p.answered && p.begun[name] == events) {
		p.changed.Wait()
	}
	over := p.over[name] == events
	p.mu.Unlock()
	if over {
		p.gateway.logging.Wait()
	}
}

// log does what rec-log did in an event.
func (p *logPlay) log(e *fakeEvent) {
	name := e.config["case"].(string)
	p.note(p.begun, name)
	p.act(e)
	p.note(p.over, name)
}

func (p *logPlay) note(counts map[string]int, name string) {
	p.mu.Lock()
	counts[name]++
	p.changed.Broadcast()
	p.mu.Unlock()
}

// act does the steps of a config. A pipelined plugin asks its questions in one write.
func (p *logPlay) act(e *fakeEvent) {
	var unsent, last []question
	for _, item := range e.config["do"].([]any) {
		step := item.(string)
		switch name, argument, _ := strings.Cut(step, "="); name {
		case "close-once":
			if p.closeOnce(e.config["case"].(string)) {
				e.lose()
				return
			}
		case "sleep":
			p.sleep(e.config["case"].(string), argument)
		case "set_headers":
			last = append(last, setHeadersCall(pairs(argument)))
		case "exit":
			parts := strings.Split(argument, "|")
			var status int
			if _, err := fmt.Sscan(parts[0], &status); err != nil {
				p.t.Error(err)
			}
			unsent = append(unsent, exitWith(status, parts[1], pairs(parts[2])))
		default:
			if recorded, ok := p.cases.arguments[step]; ok {
				unsent = append(unsent, question{name, recorded})
			}
		}
		if e.config["pipelined"] == false && len(unsent) > 0 {
			if _, err := e.ask(unsent...); err != nil {
				return
			}
			unsent = nil
		}
	}
	if _, err := e.ask(unsent...); err == nil {
		e.end(last...)
	}
}

// closeOnce reports whether the plugin must close the connection: in the first event of a case.
func (p *logPlay) closeOnce(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := !p.lost[name]
	p.lost[name] = true
	return first
}

// sleep waits for what the recorded plugin slept for: until the client has its response, or the other event has begun.
func (p *logPlay) sleep(name, duration string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for duration == "1s" && !p.answered || duration == "300ms" && p.begun[name] < 2 {
		p.changed.Wait()
	}
}

// pairs parses "name=value;name=value".
func pairs(list string) map[string]any {
	headers := map[string]any{}
	for _, pair := range strings.Split(list, ";") {
		if name, value, found := strings.Cut(pair, "="); found {
			headers[name] = value
		}
	}
	return headers
}

// awaitEnds returns when the plugins have seen the end of every connection: they read it after the gateway has closed.
func (p *logPlay) awaitEnds() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for slices.ContainsFunc(p.conns, func(c *tapConn) bool { return !c.frames[len(c.frames)-1].eof }) {
		p.changed.Wait()
	}
}

// compare compares the connections with the recorded ones.
func (p *logPlay) compare() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.conns) != len(p.cases.conns) {
		p.t.Errorf("%d connections, recorded %d", len(p.conns), len(p.cases.conns))
	}
	compared := 0
	for i, want := range p.cases.conns[:min(len(p.conns), len(p.cases.conns))] {
		got := p.conns[i].frames
		for n, frame := range want[:min(len(got), len(want))] {
			p.sameFrame(got[n], frame)
			compared++
		}
		if len(got) != len(want) {
			p.t.Errorf("connection %d has %d frames, recorded %d", i+1, len(got), len(want))
		}
	}
	if compared < 600 {
		p.t.Errorf("only %d frames were compared", compared)
	}
}
