package envoy

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
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

func TestACallKeepsItsPlaceUntilItsHandlerReturns(t *testing.T) {
	w := newWorld(t, testConfig)
	conn := w.serve()
	entered, release, ended := make(chan bool), make(chan bool), make(chan error, 1)
	w.during = func(ctx context.Context) {
		entered <- true
		<-release
		ended <- ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-entered
		cancel()
	}()
	_, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, callOf("edge", "tenant=a plan=hour"))
	require.Equal(t, codes.Canceled, status.Code(err))
	// This comes after the reset of the call, on the same connection.
	_, err = healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	time.Sleep(20 * time.Millisecond)
	require.EqualValues(t, 1, w.calls.inUse(), "calls, while the handler runs")
	close(release)
	require.NoError(t, <-ended, "the end of the call must not end the call of Redis")
	await.That(t, "no call is in progress", func() bool { return w.calls.inUse() == 0 })
}

func TestCallsAndHealthChecksHaveBounds(t *testing.T) {
	w := newWorld(t, testConfig)
	conn := w.serve()
	held := 0
	outcome := func(by netip.Addr, hold int) string {
		for ; held < hold; held++ {
			require.True(t, w.calls.take(by, maxCalls))
		}
		_, byCall := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), callOf("edge", "tenant=a plan=hour"))
		_, byCheck := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
		await.That(t, "both have ended", func() bool { return w.calls.inUse() == held })
		return status.Code(byCall).String() + " " + status.Code(byCheck).String()
	}
	own, other := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.1")
	require.Equal(t, "OK OK", outcome(own, 0))
	require.Equal(t, "OK OK", outcome(other, maxCallsOfPeer), "another address has all that it may have")
	require.Equal(t, "ResourceExhausted OK", outcome(own, maxCalls), "a busy service is healthy")
	require.Equal(t, "ResourceExhausted ResourceExhausted", outcome(own, maxCalls+maxChecks))
	for ; held > 0; held-- {
		w.calls.release(map[bool]netip.Addr{true: other, false: own}[held <= maxCallsOfPeer])
	}
	require.Equal(t, "OK OK", outcome(own, maxCallsOfPeer-1))
	require.Equal(t, "ResourceExhausted OK", outcome(own, maxCallsOfPeer), "an address has a bound of its own")
	require.EqualValues(t, 4, testutil.ToFloat64(w.answered.WithLabelValues("ResourceExhausted")))
}

func TestCallsThatAreTooLongAreErrorsThatSayByHowMuch(t *testing.T) {
	w := newWorld(t, testConfig)
	client := rls.NewRateLimitServiceClient(w.serve())
	path := strings.Repeat("x", 60<<10) // as long as Envoy lets a client make it
	_, err := client.ShouldRateLimit(t.Context(), callOf("edge", "tenant=a path=/"+path, "tenant=b path=/"+path))
	require.NoError(t, err)
	for want, call := range map[string]*rls.RateLimitRequest{
		"descriptors[0].entries[0]: its key or value has 65536 bytes": callOf("edge", "tenant="+strings.Repeat("x", 64<<10)),
		"descriptors[1].entries: 33, must be at most 32":              callOf("edge", "a=b", strings.Repeat("a=b ", 33)),
		"descriptors: 101, must be at most 100":                       callOf("edge", make([]string, 101)...),
		"received message larger than max":                            callOf("edge", "a="+strings.Repeat("x", maxMessage)),
	} {
		_, err := client.ShouldRateLimit(t.Context(), call)
		require.ErrorContains(t, err, want)
	}
	headers := metadata.AppendToOutgoingContext(t.Context(), "x", strings.Repeat("x", maxHeaders))
	_, err = client.ShouldRateLimit(headers, callOf("edge", "tenant=a"))
	require.ErrorContains(t, err, "header list size")
}

// The bound of memory in the comment of the constants counts with this size.
func TestADecodedMessageHasAtMostTheBytesThatTheBoundCountsWith(t *testing.T) {
	entries := bytes.Repeat([]byte{0x0a, 0}, maxEntries)
	admitted := bytes.Repeat(append([]byte{0x12, byte(len(entries))}, entries...), maxDescriptors)
	domain := bytes.Repeat([]byte("x"), maxMessage-len(admitted)-4)
	admitted = append(binary.AppendUvarint(append(admitted, 0x0a), uint64(len(domain))), domain...)
	inOne := binary.AppendUvarint([]byte{0x12}, maxMessage-4)
	for name, raw := range map[string][]byte{
		"empty descriptors": bytes.Repeat([]byte{0x12, 0}, maxMessage/2),
		"empty entries":     append(inOne, bytes.Repeat([]byte{0x0a, 0}, maxMessage/2-2)...),
		"empty limits":      append(inOne, bytes.Repeat([]byte{0x12, 0}, maxMessage/2-2)...),
		"all that may be":   admitted,
	} {
		before := heap()
		call := new(rls.RateLimitRequest)
		require.NoError(t, newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}, call), name)
		grown := int64(heap()) - int64(before)
		runtime.KeepAlive(call)
		t.Logf("%s: %d bytes become %d", name, len(raw), grown)
		assert.LessOrEqual(t, grown, int64(1_000_000), name)
	}
}

func TestConnectionsBeyondTheMostAreClosedAndThoseOfOneAddressBeforeOthers(t *testing.T) {
	w := newWorld(t, testConfig)
	w.serve()
	await.That(t, "the door is open", func() bool {
		conn, err := net.Dial("tcp", w.Listen)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	isOpen := func(c *caller) (*http2.SettingsFrame, bool) {
		frame, err := c.framer.ReadFrame()
		settings, _ := frame.(*http2.SettingsFrame)
		return settings, err == nil
	}
	var settings *http2.SettingsFrame
	var open []*caller
	for host := 1; len(open) < maxConnections; host++ {
		for range maxOfPeer {
			c, ok := w.dialFrom(fmt.Sprint("127.0.1.", host)), false
			settings, ok = isOpen(c)
			require.True(t, ok, "%d", len(open))
			open = append(open, c)
		}
		_, ok := isOpen(w.dialFrom(fmt.Sprint("127.0.1.", host)))
		require.False(t, ok, "one more of an address")
	}
	for id, want := range map[http2.SettingID]uint32{
		http2.SettingMaxConcurrentStreams: maxStreams, http2.SettingInitialWindowSize: window,
		http2.SettingMaxHeaderListSize: maxHeaders,
	} {
		got, _ := settings.Value(id)
		require.Equal(t, want, got, id)
	}
	_, ok := isOpen(w.dialFrom("127.0.2.1"))
	require.False(t, ok, "one more of all")
	_ = open[0].conn.Close()
	await.That(t, "its place is free", func() bool {
		_, ok := isOpen(w.dialFrom("127.0.2.1"))
		return ok
	})
	require.GreaterOrEqual(t, testutil.ToFloat64(w.closed), float64(maxConnections/maxOfPeer+1))
}

func TestACallWhoseMessageDoesNotArriveEnds(t *testing.T) {
	inFakeTime(t, func(t *testing.T, w *world, listener *bufconn.Listener) {
		conn, err := listener.DialContext(t.Context())
		require.NoError(t, err)
		defer conn.Close()
		began, c := time.Now(), w.speak(conn)
		c.stream += 2
		require.NoError(t, c.framer.WriteHeaders(http2.HeadersFrameParam{
			StreamID: c.stream, BlockFragment: c.headers, EndHeaders: true,
		}))
		require.NoError(t, c.framer.WriteData(c.stream, false, c.message[:8]))
		for ended := false; !ended; {
			frame, err := c.framer.ReadFrame()
			require.NoError(t, err)
			headers, is := frame.(*http2.HeadersFrame)
			ended = is && headers.StreamEnded()
		}
		require.Equal(t, callTime, time.Since(began))
		synctest.Wait()
		require.Zero(t, w.calls.inUse())
	})
}

// inFakeTime serves connections in memory, in a bubble of fake time.
func inFakeTime(t *testing.T, test func(t *testing.T, w *world, listener *bufconn.Listener)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w, listener := newWorld(t, testConfig), bufconn.Listen(4<<10)
		ended := make(chan error, 1)
		go func() { ended <- w.grpc.Serve(listener) }()
		defer func() {
			w.grpc.Stop()
			require.NoError(t, <-ended)
		}()
		test(t, w, listener)
	})
}

func TestAConnectionWithoutCallsEndsWhen(t *testing.T) {
	for name, c := range map[string]struct {
		greets, answers bool
		pings           time.Duration // between pings of the caller; 0: none
		after           time.Duration
		why             string // as the server says
	}{
		"no handshake is made":       {after: handshakeTime},
		"a ping has no answer":       {greets: true, after: pingAfter + pingTime},
		"it is idle":                 {greets: true, answers: true, after: idleTime, why: "max_idle"},
		"it is idle, though it asks": {greets: true, answers: true, pings: leastPing, after: idleTime, why: "max_idle"},
		"it asks too often":          {greets: true, answers: true, pings: 1e9, after: 5e9, why: "too_many_pings"},
	} {
		t.Run(name, func(t *testing.T) {
			inFakeTime(t, func(t *testing.T, _ *world, listener *bufconn.Listener) {
				conn, err := listener.DialContext(t.Context())
				require.NoError(t, err)
				defer conn.Close()
				require.NoError(t, conn.SetReadDeadline(time.Now().Add(2*idleTime)))
				began, framer := time.Now(), http2.NewFramer(conn, conn)
				if c.greets {
					_, err = conn.Write([]byte(http2.ClientPreface))
					require.NoError(t, err)
					require.NoError(t, framer.WriteSettings())
				}
				var mu sync.Mutex // of writes
				if c.pings > 0 {
					go func() {
						for err := error(nil); err == nil; {
							time.Sleep(c.pings)
							mu.Lock()
							err = framer.WritePing(false, [8]byte{1})
							mu.Unlock()
						}
					}()
				}
				why := ""
				for {
					frame, err := framer.ReadFrame()
					if err != nil {
						break
					}
					switch f := frame.(type) {
					case *http2.GoAwayFrame:
						why = string(f.DebugData())
					case *http2.PingFrame:
						if c.answers && !f.IsAck() {
							mu.Lock()
							_ = framer.WritePing(true, f.Data) // the server may have ended the connection
							mu.Unlock()
						}
					}
				}
				require.Equal(t, c.why, why)
				require.InDelta(t, c.after.Seconds(), time.Since(began).Seconds(), 1)
				time.Sleep(2 * c.pings) // so that the pings end
			})
		})
	}
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

func (w *world) dial() *caller { return w.dialFrom("127.0.0.1") }

// dialFrom connects from an address of the loopback.
func (w *world) dialFrom(address string) *caller {
	w.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	conn, err := dialer.Dial("tcp", w.Listen)
	require.NoError(w, err)
	w.Cleanup(func() { _ = conn.Close() })
	return w.speak(conn)
}

// speak begins HTTP/2 on a connection.
func (w *world) speak(conn net.Conn) *caller {
	w.Helper()
	c := &caller{T: w.T, conn: conn, framer: http2.NewFramer(conn, conn), stream: 1}
	_, _ = conn.Write([]byte(http2.ClientPreface)) // the server may have closed the connection
	_ = c.framer.WriteSettings()
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
			await.That(t, "no call is in progress", func() bool { return w.calls.inUse() == 0 })
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
