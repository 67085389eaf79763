package redis

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"
)

// directCallers is the most concurrent calls that each have a connection of their own. Beyond, they share a wire, which
// is faster from there on, and slower below. BenchmarkCallers measures it, and README.md has the costs.
const directCallers = 3

// script is a Lua script and its SHA-1, which EVALSHA names.
type script struct {
	source, sha string
	merges      bool // a command can have several requests: an argument each, and an array of their replies
	readsUntil  int  // the number of its last line with the comment [readsOnly]; 0: there is none
}

// readsOnly ends the lines of scripts with commands before which nothing is written.
const readsOnly = "-- nothing is written yet"

func newScript(source string) *script {
	s := &script{source: source, sha: redis.NewScript(source).Hash()}
	if at := strings.LastIndex(source, readsOnly); at >= 0 {
		s.readsUntil = 1 + strings.Count(source[:at], "\n")
	}
	return s
}

//go:embed lua/*.lua
var fragments embed.FS

// takeScript takes and refunds buckets. testdata/script.lua has its text.
var takeScript = newFrame(nil)

// newFrame returns a script of lua/frame.lua, in which fragments are replaced as in assemble.
func newFrame(replaced map[string]string) *script {
	s := newScript(assemble("frame", replaced))
	s.merges = true
	return s
}

// assemble returns the text of a fragment, in which the file name.lua replaces each line "--@ name". A fragment in
// replaced is used instead of the file of its name: tests replace the clock.
func assemble(name string, replaced map[string]string) string {
	text, ok := replaced[name]
	if !ok {
		file, err := fragments.ReadFile("lua/" + name + ".lua")
		if err != nil {
			panic(fmt.Sprintf("the script includes a fragment that is not embedded: %v", err))
		}
		text = string(file)
	}
	var script strings.Builder
	for line := range strings.Lines(text) {
		if included, ok := strings.CutPrefix(strings.TrimSpace(line), "--@ "); ok {
			script.WriteString(assemble(included, replaced))
		} else {
			script.WriteString(line)
		}
	}
	return script.String()
}

// server runs scripts on one Redis server, or on the master that Sentinel names.
type server struct {
	client    *redis.Client
	pipeline  *pipeline
	pipelined bool // else every call has a connection of its own
	gate      Gate
	callers   atomic.Int64
	loading   singleflight.Group // by SHA-1
}

// newServer returns a server without a connection: one is opened when it is needed.
func newServer(newClient func() *redis.Client, gate Gate, pipelined bool) *server {
	client := newClient()
	line := &pipeline{options: client.Options(), newClient: newClient}
	return &server{client: client, pipeline: line, pipelined: pipelined, gate: gate}
}

// drop ends the gate, and the pipeline after the calls in it. Later calls have connections of their own, until the
// client's owner closes the client.
func (s *server) drop() {
	s.gate.Close()
	s.pipeline.close()
}

// run runs the script, in one round trip, if the server's gate admits it.
func (s *server) run(ctx context.Context, script *script, c *call, asking bool) error {
	return runBehind(s.gate, func() error { return s.try(ctx, script, c, asking) })
}

// try sends the call. A server that does not have the script (it is new, restarted, or was a replica until now) has not
// run anything: try loads the script and sends the call once more. Asking is for a server that takes the slot over and
// runs a script only after ASKING.
func (s *server) try(ctx context.Context, script *script, c *call, asking bool) error {
	err := s.send(ctx, script, c, asking)
	if err == nil || !redis.HasErrorPrefix(err, "NOSCRIPT") {
		return script.classify(err)
	}
	if err := s.load(ctx, script); err != nil {
		return err
	}
	return script.classify(s.send(ctx, script, c, asking))
}

// probe reports whether the server answers, if its gate admits the call. The probe writes a key: a server that runs no
// scripts, because it is full, a replica or forbidden, answers PING all the time.
func (s *server) probe(ctx context.Context, key string) bool {
	err := s.run(ctx, beatScript, newCall([]string{key}, "probe", "1"), false)
	return !isServerFault(err)
}

// send sends the call over a connection of its own, or over the wire where it has company.
func (s *server) send(ctx context.Context, script *script, c *call, asking bool) error {
	if asking {
		return s.sendAsking(ctx, script, c)
	}
	callers := s.callers.Add(1)
	defer s.callers.Add(-1)
	if s.pipelined && callers > directCallers {
		if err := s.pipeline.run(ctx, script, c); !errors.Is(err, errEnded) {
			return err
		}
	}
	return c.outcome(ctx, s.client.Process(ctx, c.forGoRedis(script)))
}

// sendAsking sends ASKING and the call over one connection.
func (s *server) sendAsking(ctx context.Context, script *script, c *call) error {
	pipeline := s.client.Pipeline()
	asking, command := pipeline.Do(ctx, "asking"), c.forGoRedis(script)
	_ = pipeline.Process(ctx, command)
	_, _ = pipeline.Exec(ctx) // the commands hold the errors
	return c.outcome(ctx, cmp.Or(asking.Err(), command.Err()))
}

// load sends the script to the server, once for all calls that miss it at the same time. It uses SCRIPT LOAD and not
// EVAL, whose scripts newer servers evict. When it fails the caller's script did not run.
func (s *server) load(ctx context.Context, script *script) error {
	caller := callerContext(ctx) // the deadline of the call is used again while the script may still be loaded
	loaded := s.loading.DoChan(script.sha, func() (any, error) {
		return nil, s.client.ScriptLoad(context.WithoutCancel(caller), script.source).Err()
	})
	select {
	case result := <-loaded:
		if result.Err == nil {
			return nil
		}
		return notSent(fmt.Errorf("load the script: %w", result.Err))
	case <-ctx.Done():
	case <-caller.Done():
	}
	return &Error{Kind: NotSent, err: fmt.Errorf("load the script: %w", ctx.Err())}
}

// single is one Redis, or the master that Sentinel names.
type single struct{ *server }

// Groups implements transport: all buckets are in one place.
func (single) Groups() bool { return false }

// Run implements transport.
func (s single) Run(ctx context.Context, script *script, c *call) error {
	return s.run(ctx, script, c, false)
}

// Probe implements transport.
func (s single) Probe(ctx context.Context) { s.probe(ctx, probeKey(0)) }

func (s single) masters(ctx context.Context, visit func(context.Context, *redis.Client) error) error {
	return visit(ctx, s.client)
}

// Close ends the connections and the pipeline.
func (s single) Close() error {
	s.drop()
	s.pipeline.serving.Wait()
	return s.client.Close()
}

// Gate admits calls to a server. It can hold back calls to one that has failed lately, so that no request waits for it.
type Gate interface {
	// Enter reports whether one call may be sent, and if not, how long a retry is pointless. Each Enter that returns true
	// is followed by one Leave or one Abandon.
	Enter() (wait time.Duration, ok bool)
	// Leave ends a call that the server answered, or that failed: how long it took, and whether its error is the server's
	// fault.
	Leave(took time.Duration, failed bool)
	// Abandon ends a call whose caller had no more time after it took so long. An answer may still come. A hung server
	// ends calls only this way.
	Abandon(took time.Duration)
	// Close ends the gate: the store uses the server no more. It may be called twice.
	Close()
}

// NewGate returns the gate of a server. Both names are for people: the store's as [Store.Name] has it, and the
// server's. A call takes no longer than timeout.
type NewGate func(store, server string, timeout time.Duration) Gate

// openGate admits every call.
type openGate struct{}

func (openGate) Enter() (time.Duration, bool) { return 0, true }
func (openGate) Leave(time.Duration, bool)    {}
func (openGate) Abandon(time.Duration)        {}
func (openGate) Close()                       {}

// runBehind makes a call if a gate admits it.
func runBehind(g Gate, call func() error) (err error) {
	wait, ok := g.Enter()
	if !ok {
		return &Error{Kind: NotSent, Wait: wait, err: errGate}
	}
	began, ended := time.Now(), false
	defer func() {
		if took := time.Since(began); !ended || callerTimedOut(err) {
			g.Abandon(took)
		} else {
			g.Leave(took, isServerFault(err))
		}
	}()
	err = call()
	ended = true
	return err
}
