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
	text := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer text.Free()
	place, entries := 0, 0 // of the first descriptor with too many
	descriptors := eachField(text.ReadOnlyData(), 2, func(at int, descriptor []byte) {
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
		return c.CodecV2.Unmarshal(mem.BufferSlice{text}, to)
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

// shares counts what is in use, of all callers and of each address.
type shares struct {
	most, mostOfOne int

	mu  sync.Mutex
	all int
	of  map[netip.Addr]int
}

func newShares(most, mostOfOne int) *shares {
	return &shares{most: most, mostOfOne: mostOfOne, of: map[netip.Addr]int{}}
}

// take takes one for an address, and reports whether there was one: beyond the most for all, so many more are there.
func (s *shares) take(by netip.Addr, more int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all >= s.most+more || s.of[by] >= s.mostOfOne+more {
		return false
	}
	s.all++
	s.of[by]++
	return true
}

func (s *shares) release(by netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all--
	if s.of[by]--; s.of[by] == 0 {
		delete(s.of, by)
	}
}

// inUse returns how many are in use.
func (s *shares) inUse() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all
}

// addressOf returns the address of a peer; the zero value: it has none.
func addressOf(peer net.Addr) netip.Addr {
	at, _ := netip.ParseAddrPort(peer.String())
	return at.Addr()
}

// fairListener closes connections beyond the most of all callers, or of one address. It does not let them wait: those
// of others come after them.
type fairListener struct {
	net.Listener
	open   *shares
	closed prometheus.Counter
}

// Accept implements [net.Listener].
func (l *fairListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		by := addressOf(conn.RemoteAddr())
		if l.open.take(by, 0) {
			return &countedConn{conn, sync.OnceFunc(func() { l.open.release(by) })}, nil
		}
		l.closed.Inc()
		_ = conn.Close()
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
