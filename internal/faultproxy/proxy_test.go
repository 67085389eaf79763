package faultproxy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// patience bounds the wait for a message.
const patience = time.Minute

// startEcho starts a server that answers every command with itself, as a bulk string.
func startEcho(t *testing.T) Address {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return // closed at the end of the test
			}
			running.Go(func() {
				defer connection.Close()
				for r := bufio.NewReader(connection); ; {
					command, err := readValue(r)
					if err != nil {
						return // the client is gone
					}
					if _, err := connection.Write(bulk(command)); err != nil {
						return // the client is gone
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		running.Wait()
	})
	return TCP(listener.Addr().String())
}

// bulk encodes a bulk string.
func bulk(content []byte) []byte {
	return fmt.Appendf(nil, "$%d\r\n%s\r\n", len(content), content)
}

// command encodes a command.
func command(words ...string) []byte {
	text := fmt.Appendf(nil, "*%d\r\n", len(words))
	for _, word := range words {
		text = append(text, bulk([]byte(word))...)
	}
	return text
}

// startProxy starts a proxy before a server that echoes.
func startProxy(t *testing.T) *Proxy {
	t.Helper()
	p, err := New(startEcho(t))
	require.NoError(t, err)
	t.Cleanup(func() { closeProxy(t, p) }) // before the server ends
	return p
}

// closeProxy closes a proxy, or fails the test.
func closeProxy(t *testing.T, p *Proxy) {
	t.Helper()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// peer is a client's connection to a proxy.
type peer struct {
	net.Conn
	t *testing.T
	r *bufio.Reader
}

// dial connects to a proxy.
func dial(t *testing.T, p *Proxy) *peer {
	t.Helper()
	connection, err := net.Dial(p.Address().Network, p.Address().Name)
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() }) // the test may have closed it
	require.NoError(t, connection.SetDeadline(time.Now().Add(patience)))
	return &peer{connection, t, bufio.NewReader(connection)}
}

// send sends commands in one write.
func (c *peer) send(commands ...[]byte) {
	c.t.Helper()
	if _, err := c.Write(bytes.Join(commands, nil)); err != nil {
		c.t.Fatal(err)
	}
}

// want fails the test unless these replies come next.
func (c *peer) want(replies ...[]byte) {
	c.t.Helper()
	for i, want := range replies {
		got, err := readValue(c.r)
		if err != nil || !bytes.Equal(got, want) {
			c.t.Fatalf("reply %d: %q, %v; want %q", i+1, got, err, want)
		}
	}
}

// wantEnd fails the test unless the connection ends after the given bytes, by a reset or by a close.
func (c *peer) wantEnd(before []byte, byReset bool) {
	c.t.Helper()
	got, err := io.ReadAll(c.r)
	if !bytes.Equal(got, before) {
		c.t.Errorf("%q before the end, want %q", got, before)
	}
	if wasReset := errors.Is(err, syscall.ECONNRESET); wasReset != byReset || (!byReset && err != nil) {
		c.t.Errorf("the connection ended with %v; want a reset: %t", err, byReset)
	}
}

// wantSilence fails the test if a byte or the end of the connection comes within 50 ms.
func (c *peer) wantSilence() {
	c.t.Helper()
	require.NoError(c.t, c.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	got := make([]byte, 64)
	n, err := c.r.Read(got)
	var timeout net.Error
	if n > 0 || !errors.As(err, &timeout) || !timeout.Timeout() {
		c.t.Errorf("received %q, %v; want nothing", got[:n], err)
	}
	require.NoError(c.t, c.SetReadDeadline(time.Now().Add(patience)))
}

// awaitCounts waits until holds returns true. The proxy counts a reply after the client has it.
func awaitCounts(t *testing.T, p *Proxy, holds func(Counts) bool) {
	t.Helper()
	await.NoError(t, "the counts", func() error {
		if n := p.Counts(); !holds(n) {
			return fmt.Errorf("they are %+v", n)
		}
		return nil
	})
}

func TestANewProxyForwardsAndCountsAll(t *testing.T) {
	p := startProxy(t)
	c := dial(t, p)
	one, two := command("GET", "a"), command("EVALSHA", "x", "0")
	c.send(one, two)
	c.want(bulk(one), bulk(two))
	in, out := int64(len(one)+len(two)), int64(len(bulk(one))+len(bulk(two)))
	awaitCounts(t, p, func(n Counts) bool {
		return n == Counts{Connections: 1, Open: 1, Commands: 2, Replies: 2, BytesIn: in, BytesOut: out}
	})
	require.NoError(t, c.Close())
	awaitCounts(t, p, func(n Counts) bool { return n.Open == 0 && n.Connections == 1 })
}

func TestAProxyOnAUnixSocketRemovesItAtTheEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.sock")
	p, err := NewUnix(path, startEcho(t))
	require.NoError(t, err)
	t.Cleanup(func() { closeProxy(t, p) })
	c := dial(t, p)
	c.send(command("PING"))
	c.want(bulk(command("PING")))
	for _, step := range []func() error{p.StopListening, p.Listen, p.Close} {
		require.NoError(t, step())
	}
	c.wantEnd(nil, false)
	if _, err := net.Dial("unix", path); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("connect after the end: %v, want no such file", err)
	}
}

func TestOpenConnectionsSurviveStopListening(t *testing.T) {
	p := startProxy(t)
	c := dial(t, p)
	c.send(command("PING"))
	c.want(bulk(command("PING")))
	require.NoError(t, p.StopListening())
	if _, err := net.Dial("tcp", p.Address().Name); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connect: %v, want ECONNREFUSED", err)
	}
	c.send(command("PING"))
	c.want(bulk(command("PING")))
	require.NoError(t, p.Listen())
	again := dial(t, p)
	again.send(command("PING"))
	again.want(bulk(command("PING")))
}

func TestATargetThatEndsClosesTheConnection(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p, err := New(TCP(listener.Addr().String()))
	require.NoError(t, err)
	t.Cleanup(func() { closeProxy(t, p) })
	c := dial(t, p)
	target, err := listener.Accept()
	require.NoError(t, err)
	require.NoError(t, errors.Join(target.Close(), listener.Close()))
	c.wantEnd(nil, false)
	again, err := net.Dial("tcp", p.Address().Name)
	if err == nil { // else the reset came during the handshake
		defer again.Close()
		_, err = again.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection without a target ended with %v, want a reset", err)
	}
}
