package envoy

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
)

// serve runs the server until the end of the test, and returns a connection to it.
func (w *world) serve() *grpc.ClientConn {
	w.Helper()
	w.Listen = freeport.Address(w.T)
	ended := make(chan error, 1)
	go func() { ended <- w.Server.Run(w.Context()) }()
	w.Cleanup(func() {
		if err := <-ended; err != nil {
			w.Error(err)
		}
	})
	conn, err := grpc.NewClient(w.Listen, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	require.NoError(w, err)
	w.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestTheServerIsHealthyFromTheFirstPoliciesUntilItDrains(t *testing.T) {
	w := newWorld(t, testConfig)
	w.ready = false
	conn := w.serve()
	client := healthpb.NewHealthClient(conn)
	health := func() string {
		answer, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{})
		require.NoError(t, err)
		return answer.GetStatus().String()
	}
	require.Equal(t, "NOT_SERVING", health())
	w.ready = true
	require.Equal(t, "SERVING", health())
	w.Drain()
	require.Equal(t, "NOT_SERVING", health())
	watch, err := client.Watch(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = watch.Recv()
	require.Equal(t, codes.Unimplemented, status.Code(err), "a stream would delay the end")
	answer, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), callOf("edge", "tenant=a plan=hour"))
	require.NoError(t, err)
	require.Equal(t, "OK; OK per-hour 10/HOUR 9 46m40s", describe(answer), "calls are answered while the server drains")
	w.Stop(t.Context())
}

// caller is a client that speaks HTTP/2 by hand.
type caller struct {
	*testing.T
	conn    net.Conn
	framer  *http2.Framer
	headers []byte
	message []byte
	stream  uint32
}

func (w *world) dial() *caller {
	w.Helper()
	conn, err := net.Dial("tcp", w.Listen)
	require.NoError(w, err)
	w.Cleanup(func() { _ = conn.Close() })
	c := &caller{T: w.T, conn: conn, framer: http2.NewFramer(conn, conn), stream: 1}
	_, err = conn.Write([]byte(http2.ClientPreface))
	require.NoError(w, err)
	require.NoError(w, c.framer.WriteSettings())
	var headers bytes.Buffer
	encoder := hpack.NewEncoder(&headers)
	for _, pair := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":authority", "x"},
		{":path", rls.RateLimitService_ShouldRateLimit_FullMethodName},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	} {
		require.NoError(w, encoder.WriteField(hpack.HeaderField{Name: pair[0], Value: pair[1], Sensitive: true}))
	}
	c.headers = headers.Bytes()
	raw, err := proto.Marshal(callOf("edge", "tenant=hostile plan=hour"))
	require.NoError(w, err)
	c.message = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(raw))), raw...)
	return c
}

// call sends a call and does not read the answer.
func (c *caller) call() error {
	c.stream += 2
	err := c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: c.stream, BlockFragment: c.headers, EndHeaders: true})
	if err == nil {
		err = c.framer.WriteData(c.stream, true, c.message)
	}
	return err
}

// Hostile callers: each takes what it can until the server stops it. Meanwhile another caller is answered.
func TestOtherCallersAreAnsweredAndMemoryIsBoundedWhile(t *testing.T) {
	for name, attack := range map[string]func(w *world){
		"a caller never reads": func(w *world) {
			c := w.dial()
			for range 20_000 {
				_ = c.conn.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
				if c.call() != nil {
					return // the server reads no more of it
				}
			}
		},
		"calls are reset by the thousand": func(w *world) {
			c := w.dial()
			go func() {
				for {
					if _, err := c.framer.ReadFrame(); err != nil {
						return
					}
				}
			}()
			for range 10_000 {
				if c.call() != nil || c.framer.WriteRSTStream(c.stream, http2.ErrCodeCancel) != nil {
					return
				}
			}
		},
		"connections are opened and stay silent": func(w *world) {
			for range 200 {
				conn, err := net.Dial("tcp", w.Listen)
				require.NoError(w, err)
				w.Cleanup(func() { _ = conn.Close() })
			}
		},
		"messages are too long": func(w *world) {
			conn, err := grpc.NewClient(w.Listen, grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(w, err)
			defer conn.Close()
			long := callOf("edge", "tenant="+strings.Repeat("x", 1<<20))
			for range 20 {
				_, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(w.Context(), long)
				assert.Equal(w, codes.ResourceExhausted, status.Code(err))
				assert.ErrorContains(w, err, "larger than max")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, testConfig)
			client := rls.NewRateLimitServiceClient(w.serve())
			p99 := func(during func() bool) time.Duration {
				var took []time.Duration
				for during() || len(took) < 200 {
					began := time.Now()
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					_, err := client.ShouldRateLimit(ctx, callOf("edge", "tenant=fine plan=free"))
					cancel()
					require.NoError(t, err)
					took = append(took, time.Since(began))
				}
				slices.Sort(took)
				return took[len(took)*99/100]
			}
			quiet, before := p99(func() bool { return false }), heap()
			attacked := make(chan struct{})
			go func() {
				defer close(attacked)
				attack(w)
			}()
			loud := p99(func() bool {
				select {
				case <-attacked:
					return false
				default:
					return true
				}
			})
			grown := int64(heap()) - int64(before)
			t.Logf("p99 %s, under attack %s; the heap grew by %d KB", quiet, loud, grown>>10)
			assert.Less(t, grown, int64(32<<20), "bytes of the heap")
			await.That(t, "no call is in progress", func() bool { return w.calls.Load() == 0 })
		})
	}
}

// heap returns the bytes of live objects.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
