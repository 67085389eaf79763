// Package grpclimit limits the calls of a gRPC server by a [limiter.Limiter].
//
// A denied call does not reach its handler. Its client reads the status that the Kong plugin answers, which is
// RESOURCE_EXHAUSTED if a limit denies, and the wait as google.rpc.RetryInfo. All answers have the rate limit headers
// of the config, in lower case. A stream is one request, when it opens.
//
// Slots of concurrency limits are given back when the handler returns. A handler that settles gets its decision from
// [limiter.FromContext].
package grpclimit

import (
	"context"
	"net"
	"net/url"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limiter"
)

// Identify returns whom a call of a method, such as "/records.v1.Records/Get", is from. It must trust only what is
// authenticated, not metadata that clients can forge. The interceptors set the fields that it leaves empty: Method and
// Path are POST and the method, Endpoint is the method without its first slash, and IP is the peer's, maybe a proxy's.
// If Identify is nil, all calls are anonymous.
type Identify func(ctx context.Context, method string) limiter.Request

// Unary limits unary calls.
func Unary(l *limiter.Limiter, identify Identify) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, message any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		d := l.Decide(request(ctx, info.FullMethod, identify))
		defer d.Release()
		if err := answer(&d, func(headers metadata.MD) error { return grpc.SetHeader(ctx, headers) }); err != nil {
			return nil, err
		}
		return next(limiter.NewContext(ctx, &d), message)
	}
}

// Stream limits the opening of streams. A stream that is open spends nothing more, and holds its slots until it ends.
func Stream(l *limiter.Limiter, identify Identify) grpc.StreamServerInterceptor {
	return func(service any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		d := l.Decide(request(s.Context(), info.FullMethod, identify))
		defer d.Release()
		if err := answer(&d, s.SetHeader); err != nil {
			return err
		}
		return next(service, &stream{s, limiter.NewContext(s.Context(), &d)})
	}
}

// stream is a stream with the decision in its context.
type stream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *stream) Context() context.Context { return s.ctx }

func request(ctx context.Context, method string, identify Identify) limiter.Request {
	var r limiter.Request
	if identify != nil {
		r = identify(ctx, method)
	}
	if r.Method == "" && r.Path == "" {
		r.Method, r.Path = "POST", method
	}
	if r.Endpoint == "" {
		r.Endpoint = strings.TrimPrefix(method, "/")
	}
	if p, ok := peer.FromContext(ctx); ok && r.IP == "" {
		r.IP = p.Addr.String()
		if host, _, err := net.SplitHostPort(r.IP); err == nil {
			r.IP = host
		}
	}
	r.GRPC = true
	return r
}

// answer sends the headers of a decision, and returns the error of a denied call.
func answer(d *limiter.Decision, setHeader func(metadata.MD) error) error {
	headers, code, message := metadata.MD{}, codes.ResourceExhausted, ""
	for _, h := range d.Headers {
		switch h.Name {
		case "Content-Type": // gRPC's own
		case "grpc-status":
			number, _ := strconv.ParseUint(h.Value, 10, 32)
			code = codes.Code(number)
		case "grpc-message":
			message, _ = url.PathUnescape(h.Value)
		default:
			headers.Append(h.Name, h.Value)
		}
	}
	_ = setHeader(headers) // headers that were sent before, or a transport without, do not change the decision
	if d.Allowed {
		return nil
	}
	denied := status.New(code, message)
	if d.RetryAfter > 0 && d.RetryAfter != limiter.Never {
		wait := &errdetails.RetryInfo{RetryDelay: durationpb.New(d.RetryAfter)}
		if detailed, err := denied.WithDetails(wait); err == nil {
			denied = detailed
		}
	}
	return denied.Err()
}
