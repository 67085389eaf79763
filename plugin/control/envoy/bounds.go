package envoy

import (
	"net"
	"net/netip"
	"slices"
	"sync"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// codec decodes messages of gRPC. Of a call with too many descriptors or entries it decodes only how many there are:
// an empty one has 2 bytes, and takes 100 in memory.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// Unmarshal implements [encoding.CodecV2].
func (c codec) Unmarshal(data mem.BufferSlice, to any) error {
	call, ok := to.(*rls.RateLimitRequest)
	if !ok {
		return c.CodecV2.Unmarshal(data, to)
	}
	place, entries := 0, 0 // of the first descriptor with too many
	descriptors := eachField(data.Materialize(), 2, func(at int, descriptor []byte) {
		if n := eachField(descriptor, 1, nil); entries == 0 && n > maxEntries {
			place, entries = at, n
		}
	})
	switch {
	case descriptors > maxDescriptors:
		call.Domain, call.Descriptors = "?", make([]*common.RateLimitDescriptor, descriptors)
	case entries > 0:
		one := &common.RateLimitDescriptor{Entries: make([]*common.RateLimitDescriptor_Entry, 1)}
		long := &common.RateLimitDescriptor{Entries: make([]*common.RateLimitDescriptor_Entry, entries)}
		call.Domain, call.Descriptors = "?", append(slices.Repeat([]*common.RateLimitDescriptor{one}, place), long)
	default:
		return c.CodecV2.Unmarshal(data, to)
	}
	return nil
}

// eachField calls do with every field of a number in a message, all of which have bytes, and returns their number. It
// ends where the message is malformed.
func eachField(message []byte, number protowire.Number, do func(place int, value []byte)) (n int) {
	for len(message) > 0 {
		found, kind, head := protowire.ConsumeTag(message)
		if head < 0 {
			return n
		}
		tail := protowire.ConsumeFieldValue(found, kind, message[head:])
		if tail < 0 {
			return n
		}
		if found == number && kind == protowire.BytesType {
			if do != nil {
				value, _ := protowire.ConsumeBytes(message[head:])
				do(n, value)
			}
			n++
		}
		message = message[head+tail:]
	}
	return n
}

// fairListener closes connections beyond the most of all callers, or of one address. It does not let them wait: those
// of others come after them.
type fairListener struct {
	net.Listener
	closed prometheus.Counter

	mu   sync.Mutex
	all  int
	open map[netip.Addr]int
}

// Accept implements [net.Listener].
func (l *fairListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		peer, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
		if l.take(peer.Addr()) {
			return &countedConn{conn, sync.OnceFunc(func() { l.release(peer.Addr()) })}, nil
		}
		l.closed.Inc()
		_ = conn.Close()
	}
}

func (l *fairListener) take(peer netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == maxConnections || l.open[peer] == maxOfPeer {
		return false
	}
	l.all++
	l.open[peer]++
	return true
}

func (l *fairListener) release(peer netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.open[peer]--; l.open[peer] == 0 {
		delete(l.open, peer)
	}
}

// countedConn is a connection that gives its place back when it is closed.
type countedConn struct {
	net.Conn
	release func()
}

func (c *countedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
