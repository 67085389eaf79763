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
	// directCallers is the most concurrent calls that each have a connection of their own. Beyond, their commands are
	// pipelined, which is faster from there on, and slower below. BenchmarkCallers measures it.
	directCallers = 3
	// maxBatch is the most commands that go-redis sends together.
	maxBatch = 300
	// maxQueued bounds the commands that wait while a server does not answer; one more is not sent.
	maxQueued = 16384
)

// script is a Lua script and its SHA-1, which EVALSHA names.
type script struct{ source, sha string }

func newScript(source string) *script {
	return &script{source: source, sha: redis.NewScript(source).Hash()}
}

// server runs scripts on one Redis server, or on the master that Sentinel names.
type server struct {
	client    *redis.Client
	pipe      *redis.AutoPipeliner // nil: every call has a connection of its own
	gate      Gate
	callers   atomic.Int64
	rejecting atomic.Bool        // the last script got an error from a live server
	loading   singleflight.Group // by SHA-1
}

// newServer returns a server without a connection: go-redis opens one when it needs it. Its pipeline ends with the
// client.
func newServer(client *redis.Client, gate Gate, pipelined bool) (*server, error) {
	s := &server{client: client, gate: gate}
	if !pipelined {
		return s, nil
	}
	options := &redis.AutoPipelineOptions{MaxBatchSize: maxBatch, MaxQueuedCommands: maxQueued}
	pipe, err := client.AsyncAutoPipelineWithOptions(options)
	if err != nil {
		return nil, fmt.Errorf("start a pipeline: %w", err)
	}
	s.pipe = pipe
	return s, nil
}

// evalsha returns the command that runs the script.
func (s *script) evalsha(keys []string, args []any) []any {
	command := make([]any, 0, 3+len(keys)+len(args))
	command = append(command, "evalsha", s.sha, len(keys))
	for _, key := range keys {
		command = append(command, key)
	}
	return append(command, args...)
}

// run sends the command that runs script, in one round trip, if the server's gate admits it.
func (s *server) run(ctx context.Context, script *script, command []any, asking bool) (reply []any, err error) {
	wait, ok := s.gate.Enter()
	if !ok {
		return nil, &Error{Kind: NotSent, Wait: wait, err: errGate}
	}
	err = errUnfinished
	defer leaveGate(s.gate, time.Now(), &err)
	reply, err = s.try(ctx, script, command, asking)
	if rejecting := isServerRejection(err); rejecting != s.rejecting.Load() {
		s.rejecting.Store(rejecting)
	}
	return reply, err
}

// try sends the command. A server that does not have the script (it is new, restarted, or was a replica until now) has
// not run anything: try loads the script and sends the command once more. Asking is for a server that takes the slot
// over and runs the command only after ASKING.
func (s *server) try(ctx context.Context, script *script, command []any, asking bool) ([]any, error) {
	send := s.send
	if asking {
		send = s.sendAsking
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

// probe reports whether the server answers, if its gate admits the call. Key returns a key that the server keeps, "" if
// there is none. A server that runs no scripts, because it is full, a replica or forbidden, answers PING all the time:
// it must write.
func (s *server) probe(ctx context.Context, key func() string) bool {
	if _, ok := s.gate.Enter(); !ok {
		return false
	}
	err := errUnfinished
	defer leaveGate(s.gate, time.Now(), &err)
	err = s.ping(ctx, key)
	return !isServerFault(err)
}

func (s *server) ping(ctx context.Context, key func() string) error {
	if s.rejecting.Load() {
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

// sendAsking sends ASKING and the command over one connection.
func (s *server) sendAsking(ctx context.Context, command []any) ([]any, error) {
	pipeline := s.client.Pipeline()
	asking := pipeline.Do(ctx, "asking")
	cmd := pipeline.Do(ctx, command...)
	_, _ = pipeline.Exec(ctx) // the commands hold the errors
	if err := asking.Err(); err != nil {
		return nil, err
	}
	return cmd.Slice()
}

// load sends the script to the server, once for all calls that miss it at the same time. It uses SCRIPT LOAD and not
// EVAL, whose scripts newer servers evict. When it fails the caller's script did not run.
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
