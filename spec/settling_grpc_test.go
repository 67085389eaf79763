package spec

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/grpctest"
)

// grpcCall is what the server of a gRPC call does.
type grpcCall struct {
	name            string
	header, trailer string // tokens that it says it has used
	fails           bool
	charged         int
}

var grpcCalls = []grpcCall{
	{name: "tokens in the header", header: "30", charged: 30},
	{name: "more tokens than were reserved", header: "170", charged: 170},
	{name: "no tokens", header: "0", charged: 0},
	{name: "tokens nowhere", charged: 100},
	{name: "tokens in the trailer, which Kong does not read", trailer: "30", charged: 100},
	{name: "a failure", header: "30", fails: true, charged: 30}, // its HTTP status is 200
}

// answersWith are options of a server whose calls all do what call says.
func answersWith(call *grpcCall) []grpc.ServerOption {
	tokens := func(value string) metadata.MD {
		if value == "" {
			return nil
		}
		return metadata.Pairs("X-Tokens-Used", value)
	}
	failure := func() error {
		if call.fails {
			return status.Error(codes.Unavailable, "try later")
		}
		return nil
	}
	return []grpc.ServerOption{
		grpc.UnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo,
			next grpc.UnaryHandler,
		) (any, error) {
			err := errors.Join(grpc.SetHeader(ctx, tokens(call.header)), grpc.SetTrailer(ctx, tokens(call.trailer)))
			if err == nil {
				err = failure()
			}
			if err != nil {
				return nil, err
			}
			return next(ctx, request)
		}),
		grpc.StreamInterceptor(func(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo,
			next grpc.StreamHandler,
		) error {
			stream.SetTrailer(tokens(call.trailer))
			if err := errors.Join(stream.SetHeader(tokens(call.header)), failure()); err != nil {
				return err
			}
			return next(service, stream)
		}),
	}
}

// grpcBudget returns a config with a budget for all calls together.
func grpcBudget(limit string) string {
	return `{show_shared_limits: true, global: {limits: [{name: budget, scope: global, limit: ` + limit + `, window_size: 31536000,
		algorithm: fixed_window, settle: {sources: [{from: header.X-Tokens-Used}], reserve: 100, refund_on: [503]}}]}}`
}

// settlingGRPCDeck is grpcDeck with the companion plugin.
func settlingGRPCDeck(port int, config string) string {
	return strings.Replace(grpcDeck(port, config, ""), "plugins: []", "plugins: [{name: tenant-rate-settling}]", 1)
}

// calls sends gRPC calls to a node and waits for their log phases.
type calls struct {
	*node
	sent int64
}

// call returns the outcome of a call and what was left of the budget when it was decided.
func (c *calls) call(method string) (got grpctest.Result, left int) {
	c.t.Helper()
	c.sent++
	got = grpctest.Call(c.t, c.URL(), method)
	await.That(c.t, "the log phase", func() bool { return c.Counters().LogEvents() >= c.sent })
	left, err := strconv.Atoi(strings.Join(got.Metadata["x-ratelimit-remaining"], ","))
	if err != nil {
		c.t.Fatalf("%+v: %v", got, err)
	}
	return got, left
}

func TestAGRPCCallIsChargedWhatItsHeaderSays(t *testing.T) {
	t.Parallel()
	for _, method := range []string{grpctest.Check, grpctest.Watch} {
		var call grpcCall
		server := grpctest.ServeHealth(t, answersWith(&call)...)
		c := calls{node: start(t, settlingGRPCDeck(server, grpcBudget("100000")), settling)}
		left := 100_000
		for _, call = range append(slices.Clone(grpcCalls), grpcCall{name: "the next one"}) {
			got, now := c.call(method)
			if now != left-100 {
				t.Fatalf("%s: before %s: %d tokens are left at access, want %d", method, call.name, now, left-100)
			}
			if failed := got.Code == codes.Unavailable; failed != call.fails {
				t.Errorf("%s: %s: %v", method, call.name, got.Code)
			}
			left -= call.charged
		}
	}
}
