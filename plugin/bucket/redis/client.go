package redis

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"
)

const (
	// directCallers is up to how many calls at once each have a connection of their own. One more, and their commands
	// travel together: from there on that is faster, below it is slower. BenchmarkCallers measures it.
	directCallers = 3
	// maxBatch is how many commands go-redis waits for at most before it sends what it has.
	maxBatch = 300
	// maxQueued bounds the commands that wait while a server does not answer; one more is not sent.
	maxQueued = 16384
)

// script is a Lua script and the name by which EVALSHA knows it.
type script struct{ source, sha string }

func newScript(source string) *script {
	return &script{source: source, sha: redis.NewScript(source).Hash()}
}

// server runs a script on one Redis server, or on whichever Sentinel says is the master.
type server struct {
	client  *redis.Client
	pipe    *redis.AutoPipeliner // nil: every call has a connection of its own
	gate    Gate
	callers atomic.Int64
	refuses atomic.Bool        // the last script was turned away by a server that lives
	loading singleflight.Group // by the scripts' names
}

// newServer opens no connection; go-redis does when it needs one. Its pipeline ends with the client.
func newServer(client *redis.Client, gate Gate, pipelined bool) (*server, error) {
	s := &server{client: client, gate: gate}
	if !pipelined {
		return s, nil
	}
	pipe, err := client.AsyncAutoPipelineWithOptions(&redis.AutoPipelineOptions{MaxBatchSize: maxBatch, MaxQueuedCommands: maxQueued})
	if err != nil {
		return nil, fmt.Errorf("start a pipeline: %w", err)
	}
	s.pipe = pipe
	return s, nil
}

// evalsha is the command that runs the script.
func (s *script) evalsha(keys []string, args []any) []any {
	command := make([]any, 0, 3+len(keys)+len(args))
	command = append(command, "evalsha", s.sha, len(keys))
	for _, key := range keys {
		command = append(command, key)
	}
	return append(command, args...)
}

// run sends the command that runs script, in one round trip, if the server's gate lets it through.
func (s *server) run(ctx context.Context, script *script, command []any, asking bool) (reply []any, err error) {
	wait, ok := s.gate.Enter()
	if !ok {
		return nil, &Error{Kind: NotSent, Wait: wait, err: errGate}
	}
	err = errUnfinished
	defer leave(s.gate, time.Now(), &err)
	reply, err = s.try(ctx, script, command, asking)
	if refuses := turnsAway(err); refuses != s.refuses.Load() {
		s.refuses.Store(refuses)
	}
	return reply, err
}

// try sends the command. A server that does not have the script (it is new, restarted, or was a replica until now) has
// not run anything: it gets the script, and the command once more. asking says that the server is taking the slot over
// and runs the command only after ASKING.
func (s *server) try(ctx context.Context, script *script, command []any, asking bool) ([]any, error) {
	send := s.send
	if asking {
		send = s.ask
	}
	reply, err := send(ctx, command)
	if err == nil || !redis.HasErrorPrefix(err, "NOSCRIPT") {
		return reply, err
	}
	if err := s.load(ctx, script); err != nil {
		return nil, err
	}
	return send(ctx, command)
}

// probe asks the server whether it lives, if its gate lets that through, and tells whether it does. key answers a key
// that the server keeps, "" if there is none. A server that turns scripts away, because it is full, a replica or
// forbidden, answers PING all the time: it lives again when it writes.
func (s *server) probe(ctx context.Context, key func() string) bool {
	if _, ok := s.gate.Enter(); !ok {
		return false
	}
	err := errUnfinished
	defer leave(s.gate, time.Now(), &err)
	err = s.ping(ctx, key)
	return !ails(err)
}

func (s *server) ping(ctx context.Context, key func() string) error {
	if s.refuses.Load() {
		if key := key(); key != "" {
			_, err := s.try(ctx, beatScript, beatScript.evalsha([]string{key}, []any{"probe", 1, format}), false)
			return err
		}
	}
	return s.client.Ping(ctx).Err()
}

func (s *server) send(ctx context.Context, command []any) ([]any, error) {
	callers := s.callers.Add(1)
	defer s.callers.Add(-1)
	cmd := redis.NewCmd(ctx, command...)
	if s.pipe == nil || callers <= directCallers {
		_ = s.client.Process(ctx, cmd) // the command holds the error
		return cmd.Slice()
	}
	// The pipeline knows nothing of ctx: a command whose caller has gone is sent all the same.
	if err := s.pipe.Submit(ctx, cmd).WaitContext(ctx); err != nil {
		return nil, err
	}
	return cmd.Slice()
}

// ask sends ASKING and the command over one connection.
func (s *server) ask(ctx context.Context, command []any) ([]any, error) {
	pipeline := s.client.Pipeline()
	asking := pipeline.Do(ctx, "asking")
	cmd := pipeline.Do(ctx, command...)
	_, _ = pipeline.Exec(ctx) // the commands hold the errors
	if err := asking.Err(); err != nil {
		return nil, err
	}
	return cmd.Slice()
}

// load gives the server the script: once for all calls that miss it at the same time. SCRIPT LOAD and not EVAL, whose
// scripts newer servers forget. When it fails the caller's script did not run.
func (s *server) load(ctx context.Context, script *script) error {
	loaded := s.loading.DoChan(script.sha, func() (any, error) {
		return nil, s.client.ScriptLoad(context.WithoutCancel(ctx), script.source).Err()
	})
	select {
	case result := <-loaded:
		if result.Err == nil {
			return nil
		}
		kind := kindOf(result.Err)
		if kind == Unknown {
			kind = NotSent
		}
		return &Error{Kind: kind, err: fmt.Errorf("load the script: %w", result.Err)}
	case <-ctx.Done():
		return &Error{Kind: NotSent, err: fmt.Errorf("load the script: %w", ctx.Err())}
	}
}

// single is one Redis, or the master that Sentinel names.
type single struct{ *server }

// Groups implements transport: all buckets are in one place.
func (single) Groups() bool { return false }

// Run implements transport.
func (s single) Run(ctx context.Context, script *script, keys []string, args []any) ([]any, error) {
	return s.run(ctx, script, script.evalsha(keys, args), false)
}

// Probe implements transport.
func (s single) Probe(ctx context.Context) { s.probe(ctx, func() string { return probeKey(0) }) }

func (s single) masters(ctx context.Context, visit func(context.Context, *redis.Client) error) error {
	return visit(ctx, s.client)
}

// Close ends the connections and the pipeline.
func (s single) Close() error {
	s.gate.Close()
	return s.client.Close()
}
