package wire

import (
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// eachSocket runs a test with sockets of both kinds and their peers.
func eachSocket(t *testing.T, test func(t *testing.T, s *socket, peer net.Conn, writes *atomic.Uint64)) {
	for name, kind := range map[string]func(net.Conn) net.Conn{
		"unix socket":        func(c net.Conn) net.Conn { return c },
		"another connection": func(c net.Conn) net.Conn { return struct{ net.Conn }{c} },
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
			require.NoError(t, err)
			defer listener.Close()
			peer, err := net.Dial("unix", listener.Addr().String())
			require.NoError(t, err)
			defer peer.Close()
			c, err := listener.Accept()
			require.NoError(t, err)
			defer c.Close()
			var writes atomic.Uint64
			s := newSocket(&writes, nil)
			s.open(kind(c))
			require.Equal(t, name == "unix socket", s.raw != nil, "the socket is read by %v", s.raw)
			test(t, s, peer, &writes)
		})
	}
}

func TestSentBytesAreWrittenBeforeTheReadWaits(t *testing.T) {
	eachSocket(t, func(t *testing.T, s *socket, peer net.Conn, writes *atomic.Uint64) {
		go func() {
			question := make([]byte, 8)
			if _, err := io.ReadFull(peer, question); err == nil {
				_, _ = peer.Write(append(question, '!')) // if it fails, the read does
			}
		}()
		s.send([]byte("question"), true)
		buffer := make([]byte, 100)
		if n, err := s.Read(buffer); err != nil || string(buffer[:n]) != "question!" {
			t.Errorf("%q, %v", buffer[:n], err)
		}
		assert.EqualValues(t, 1, writes.Load(), "writes")
	})
}

func TestSentBytesAreWrittenAlthoughTheReadIsInterrupted(t *testing.T) {
	eachSocket(t, func(t *testing.T, s *socket, peer net.Conn, _ *atomic.Uint64) {
		require.NoError(t, s.SetDeadline(time.Unix(1, 0)))
		s.send([]byte("answer"), false)
		got := make(chan string, 1)
		go func() {
			answer := make([]byte, 6)
			_, _ = io.ReadFull(peer, answer) // the comparison shows missing bytes
			got <- string(answer)
			peer.Close()
		}()
		if n, err := s.Read(make([]byte, 100)); n != 0 || (!isTimeout(err) && err != io.EOF) {
			t.Errorf("%d bytes, %v; want a timeout or the end", n, err)
		}
		assert.Equal(t, "answer", <-got, "the peer has read")
	})
}

func TestAfterTheLastBytesAConnectionIsClosedAtTheLatestByClose(t *testing.T) {
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer null.Close()
	for _, spare := range []*os.File{nil, null} {
		eachSocket(t, func(t *testing.T, s *socket, peer net.Conn, _ *atomic.Uint64) {
			s.spare = spare
			s.send([]byte("exit"), false)
			require.NoError(t, s.sendLast())
			assert.Equal(t, spare != nil && s.raw != nil && runtime.GOOS == "linux", s.replaced, "the connection was replaced")
			assert.NoError(t, s.Close())
			if got, err := io.ReadAll(peer); string(got) != "exit" || err != nil {
				t.Errorf("the peer has read %q: %v", got, err)
			}
		})
	}
}

func TestAPeerThatReadsSlowlyGetsAllOfALongAnswer(t *testing.T) {
	long := bytes.Repeat([]byte("0123456789abcdef"), 1<<17) // more than the kernel keeps
	eachSocket(t, func(t *testing.T, s *socket, peer net.Conn, _ *atomic.Uint64) {
		got := make(chan []byte, 1)
		go func() {
			answer := make([]byte, len(long))
			n, _ := io.ReadFull(peer, answer) // the comparison shows missing bytes
			got <- answer[:n]
			peer.Close()
		}()
		s.send(long, false)
		if n, err := s.Read(make([]byte, 100)); n != 0 || err != io.EOF {
			t.Errorf("%d bytes, %v; want the end", n, err)
		}
		if answer := <-got; !bytes.Equal(answer, long) {
			t.Errorf("the peer has read %d bytes, want %d", len(answer), len(long))
		}
	})
}

func TestAWriteThatIsInterruptedTwiceFailsForGood(t *testing.T) {
	long := bytes.Repeat([]byte("0123456789abcdef"), 1<<17) // more than the kernel keeps
	eachSocket(t, func(t *testing.T, s *socket, _ net.Conn, _ *atomic.Uint64) {
		done := make(chan struct{})
		var watchdog sync.WaitGroup
		watchdog.Go(func() {
			ticker := time.NewTicker(time.Millisecond)
			defer ticker.Stop()
			for {
				select {
				case <-done:
					return
				case <-ticker.C:
					assert.NoError(t, s.SetDeadline(time.Unix(1, 0)))
				}
			}
		})
		s.send(long, true)
		n, err := s.Read(make([]byte, 100))
		close(done)
		watchdog.Wait()
		if n != 0 || err == nil || isTimeout(err) || isGone(err) {
			t.Errorf("%d bytes, %v; a part of the answer was written, and nothing may follow it", n, err)
		}
	})
}

func TestInputBeforeTheWriteIsReadWhenNoAnswerIsDue(t *testing.T) {
	eachSocket(t, func(t *testing.T, s *socket, peer net.Conn, _ *atomic.Uint64) {
		buffer := make([]byte, 100)
		for _, call := range []string{"first", "second"} { // before the return of the first
			if _, err := peer.Write([]byte(call)); err != nil {
				t.Fatal(err)
			}
			poll(t)
			require.NoError(t, s.SetDeadline(time.Now().Add(20*time.Second)))
			s.send([]byte("return"), false)
			if n, err := s.Read(buffer); err != nil || string(buffer[:n]) != call {
				t.Fatalf("%q, %v; want the %s call", buffer[:n], err, call)
			}
		}
	})
}

// poll makes Go's poller handle all events so far: accepting connections polls.
func poll(t *testing.T) {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "p"))
	require.NoError(t, err)
	defer listener.Close()
	for range 20 {
		go func() {
			if c, err := net.Dial("unix", listener.Addr().String()); err == nil { // else Accept fails
				c.Close()
			}
		}()
		c, err := listener.Accept()
		require.NoError(t, err)
		c.Close()
	}
}

func TestPipelinedCallsAreAnswered(t *testing.T) {
	h := serve(t, pass, nil)
	k := h.dial()
	id := k.StartInstance(1, "{}")
	const calls = 200
	for range calls {
		k.CallEvent(id, "access")
	}
	for i := range 2 * calls { // the end of the event and the return, each
		if _, err := k.Receive(); err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
	}
}
