package faultproxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// patience bounds the wait for a message.
const patience = time.Minute

// startEcho starts a server that answers every command with itself, as a bulk string.
func startEcho(t *testing.T) (address string) {
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
	return listener.Addr().String()
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

// peer is a client's connection to a proxy.
type peer struct {
	net.Conn
	t *testing.T
	r *bufio.Reader
}

// dial connects to a proxy.
func dial(t *testing.T, p *Proxy) *peer {
	t.Helper()
	connection, err := net.Dial("tcp", p.Address())
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

// wantReset fails the test unless a reset comes next.
func (c *peer) wantReset() {
	c.t.Helper()
	if got, err := io.ReadAll(c.r); len(got) > 0 || !errors.Is(err, syscall.ECONNRESET) {
		c.t.Errorf("received %q and %v; want a reset", got, err)
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

var (
	ping  = command("PING")
	pong  = bulk(ping)
	take  = command("EVALSHA", "sha", "0")
	taken = bulk(take)
)

func TestAPartitionDropsAllAndHealResetsConnectionsThatLostBytes(t *testing.T) {
	p := New(t, startEcho(t))
	lost, idle := dial(t, p), dial(t, p)
	for _, c := range []*peer{lost, idle} {
		c.send(ping)
		c.want(pong)
	}
	p.Partition()
	during := dial(t, p)
	lost.send(take)
	during.send(take)
	for _, c := range []*peer{lost, idle, during} {
		c.wantSilence()
	}
	require.NoError(t, p.Heal())
	lost.wantReset()
	during.wantReset()
	idle.send(take)
	idle.want(taken)
}

func TestAfterHalfAReplyAConnectionHangsUntilItHeals(t *testing.T) {
	p := New(t, startEcho(t))
	c := dial(t, p)
	p.CutReplies(-1, Hang)
	c.send(take)
	got := make([]byte, len(taken)/2)
	for n := 0; n < len(got); {
		more, err := c.r.Read(got[n:])
		if n += more; err != nil {
			t.Fatalf("after %q: %v", got[:n], err)
		}
	}
	c.send(ping)
	c.wantSilence()
	require.NoError(t, p.Heal())
	c.wantReset()
}

func TestAnswersOfTheProxyComeInTheOrderOfTheCommands(t *testing.T) {
	p := New(t, startEcho(t))
	c := dial(t, p)
	loading := []byte("-LOADING Redis is loading the dataset in memory\r\n")
	p.Answer("EvalSha", "-LOADING Redis is loading the dataset in memory")
	p.Delay(20 * time.Millisecond)
	c.send(ping, take, ping, take)
	c.want(pong, loading, pong, loading)
	require.NoError(t, p.Heal())
	c.send(take)
	c.want(taken)
}

func TestFaultsChangeWhileConnectionsAreBusy(t *testing.T) {
	p := New(t, startEcho(t))
	ctx, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for ctx.Err() == nil {
				connection, err := net.Dial("tcp", p.Address())
				if err != nil {
					continue // the proxy is down
				}
				_ = connection.SetDeadline(time.Now().Add(10 * time.Millisecond)) // a fault makes the next steps fail
				for err == nil && ctx.Err() == nil {
					if _, err = connection.Write(take); err == nil {
						_, err = connection.Read(make([]byte, 256))
					}
				}
				_ = connection.Close()
			}
		})
	}
	for _, fault := range []func(){
		p.Partition, func() { p.CutReplies(3, Hang) }, func() { p.Delay(time.Millisecond) },
		func() { p.Answer("evalsha", "-BUSY") },
	} {
		group.Go(func() {
			for ctx.Err() == nil {
				fault()
				if err := errors.Join(p.Down(), p.Heal()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	require.NoError(t, p.Heal())
	c := dial(t, p)
	c.send(take)
	c.want(taken)
}

func TestAValueIsReadToItsEndAndNoFurther(t *testing.T) {
	for _, value := range []string{
		"+OK\r\n", "-ERR no\r\n", ":12\r\n", "$-1\r\n", "$0\r\n\r\n", "$7\r\na\r\nb\r\nc\r\n", "*-1\r\n", "*0\r\n",
		"*2\r\n*1\r\n:1\r\n$1\r\nx\r\n", "PING\r\n", "+" + strings.Repeat("x", 10000) + "\r\n",
	} {
		r := bufio.NewReader(strings.NewReader(value + "+next\r\n"))
		if got, err := readValue(r); err != nil || string(got) != value {
			t.Errorf("%.40q: read %.40q, %v", value, got, err)
		}
		if next, err := readValue(r); err != nil || string(next) != "+next\r\n" {
			t.Errorf("%.40q: then %q, %v", value, next, err)
		}
	}
	for _, text := range []string{"$x\r\n", "*-2\r\n", "$99999999999\r\n", "$7\r\na\r\n"} {
		if value, err := readValue(bufio.NewReader(strings.NewReader(text))); err == nil {
			t.Errorf("%q: %q, want an error", text, value)
		}
	}
}
