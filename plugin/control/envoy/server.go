package envoy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
)

// What callers may take of the process. Decoded, a message takes 1 MB at most: all calls take at most maxCalls × 1 MB,
// 512 MB.
const (
	maxConnections = 1024
	maxOfPeer      = 256 // connections of one address
	maxStreams     = 128 // calls at once on one connection
	maxCalls       = 512
	maxCallsOfPeer = 384       // calls of one address: no single caller keeps others away
	maxChecks      = 64        // of health, beside maxCalls: a busy service is healthy
	maxMessage     = 192 << 10 // bytes: Envoy's longest path, 60 KiB, in three descriptors
	maxHeaders     = 16 << 10  // bytes of a call's headers
	window         = 64 << 10  // bytes that a caller may send ahead of what is read, on a stream and on a connection

	handshakeTime = 5 * time.Second
	callTime      = 2 * time.Second // until a message has arrived
	idleTime      = 5 * time.Minute
	pingAfter     = 30 * time.Second // of silence
	pingTime      = 10 * time.Second // until a caller that does not answer is disconnected
	leastPing     = 10 * time.Second // between pings of a caller
)

// Server serves the protocol, and gRPC's health service. Create it with NewServer.
type Server struct {
	rls.UnimplementedRateLimitServiceServer
	healthpb.UnimplementedHealthServer // a stream, such as Watch, would outlast the end of the process
	Options
	grpc     *grpc.Server
	memory   sync.Pool // of *admit.Joint
	calls    *shares   // in progress
	draining atomic.Bool

	answered, ignored *prometheus.CounterVec
	closed            prometheus.Counter
}

// NewServer returns a server. It does no I/O.
func NewServer(o Options) *Server {
	s := &Server{Options: o, calls: newShares(maxCalls, maxCallsOfPeer)}
	s.register()
	s.memory.New = func() any { return new(admit.Joint) }
	options := []grpc.ServerOption{
		grpc.InTapHandle(s.begin), grpc.UnaryInterceptor(s.handle), grpc.ConnectionTimeout(handshakeTime),
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxConcurrentStreams(maxStreams), grpc.MaxRecvMsgSize(maxMessage), grpc.MaxHeaderListSize(maxHeaders),
		grpc.StaticStreamWindowSize(window), grpc.StaticConnWindowSize(window),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleTime, Time: pingAfter, Timeout: pingTime}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: leastPing, PermitWithoutStream: true}),
	}
	if o.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(o.TLS)))
	}
	s.grpc = grpc.NewServer(options...)
	rls.RegisterRateLimitServiceServer(s.grpc, s)
	healthpb.RegisterHealthServer(s.grpc, s)
	return s
}

// begin counts a call before its message is read, and denies it if too many are in progress, of all or of its address.
// A call that reaches no handler in time gives its place back when its context ends.
func (s *Server) begin(ctx context.Context, call *tap.Info) (context.Context, error) {
	more := 0
	if strings.HasPrefix(call.FullMethodName, "/"+healthpb.Health_ServiceDesc.ServiceName+"/") {
		more = maxChecks
	}
	by := netip.Addr{}
	if p, ok := peer.FromContext(ctx); ok {
		by = addressOf(p.Addr)
	}
	if !s.calls.take(by, more) {
		err := status.Errorf(codes.ResourceExhausted, "%d calls are in progress already, or %d from this address: retry later",
			maxCalls, maxCallsOfPeer)
		s.count(nil, err)
		return nil, err
	}
	release := func() { s.calls.release(by) }
	limited, cancel := context.WithTimeout(ctx, callTime)
	context.AfterFunc(ctx, cancel)
	return context.WithValue(limited, placeKey{}, place{context.AfterFunc(limited, release), release}), nil
}

// place is that of a call among those in progress. keep keeps it beyond the end of the call's context.
type place struct {
	keep    func() bool
	release func()
}

type placeKey struct{} // of the place of a call

// handle calls a handler, which gives the place of its call back.
func (s *Server) handle(ctx context.Context, call any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	p := ctx.Value(placeKey{}).(place)
	if !p.keep() {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	defer p.release()
	return next(ctx, call)
}

// Check implements gRPC's health service: the server is healthy from the first policies until it drains.
func (s *Server) Check(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	answer := &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}
	if s.Ready() && !s.draining.Load() {
		answer.Status = healthpb.HealthCheckResponse_SERVING
	}
	return answer, nil
}

// Run serves until Stop, or until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.Listen)
	if err != nil {
		return fmt.Errorf("--envoy-listen: %w", err)
	}
	defer context.AfterFunc(ctx, s.grpc.Stop)()
	fair := &fairListener{Listener: listener, open: newShares(maxConnections, maxOfPeer), closed: s.closed}
	if err := s.grpc.Serve(fair); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// Drain makes the health service say that callers should go elsewhere, for good. Calls are still answered.
func (s *Server) Drain() { s.draining.Store(true) }

// Stop ends Run. It waits for running calls until ctx ends, and then aborts them.
func (s *Server) Stop(ctx context.Context) {
	defer context.AfterFunc(ctx, s.grpc.Stop)()
	s.grpc.GracefulStop()
}

// What was ignored, in metrics.
const (
	ignoredDomain     = "domain"
	ignoredDescriptor = "descriptor"
	ignoredLimit      = "limit"
)

func (s *Server) register() {
	counter := func(name, help, label string) *prometheus.CounterVec {
		return promauto.With(s.Metrics).NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	s.answered = counter("rate_limiter_envoy_calls_total", "Calls of Envoy's rate limit protocol, by overall code, or by "+
		"gRPC code if they failed. ResourceExhausted: too many were in progress. panic: on_internal_error decided.", "code")
	s.ignored = counter("rate_limiter_envoy_ignored_total", "What calls named without effect: a domain that is not "+
		"configured, a descriptor of which nothing is mapped, a limit that a descriptor may not state.", "what")
	s.closed = promauto.With(s.Metrics).NewCounter(prometheus.CounterOpts{
		Name: "rate_limiter_envoy_connections_closed_total",
		Help: "Connections of callers closed at once, because too many were open, or too many of one address.",
	})
	for _, what := range []string{ignoredDomain, ignoredDescriptor, ignoredLimit} {
		s.ignored.WithLabelValues(what)
	}
}

func (s *Server) count(answer *rls.RateLimitResponse, err error) {
	code := answer.GetOverallCode().String()
	if err != nil {
		code = status.Code(err).String()
	}
	s.answered.WithLabelValues(code).Inc()
}
