package faultproxy

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	ping  = command("PING")
	pong  = bulk(ping)
	take  = command("EVALSHA", "sha", "0")
	taken = bulk(take)
)

// heal ends all faults, or fails the test.
func heal(t *testing.T, p *Proxy) {
	t.Helper()
	require.NoError(t, p.Heal())
}

func TestADelayAppliesOnceToEachMessageAndKeepsTheirOrder(t *testing.T) {
	p := startProxy(t)
	c := dial(t, p)
	const delay = 100 * time.Millisecond
	p.Delay(ToServer, delay)
	p.Delay(ToClient, delay)
	start := time.Now()
	c.send(ping, take, ping)
	c.want(pong, taken, pong)
	if took := time.Since(start); took < 2*delay {
		t.Errorf("three replies came after %v, want at least %v", took, 2*delay)
	}
	heal(t, p)
	c.send(ping)
	c.want(pong)
}

func TestAPartitionDropsAllAndHealResetsConnectionsThatLostBytes(t *testing.T) {
	p := startProxy(t)
	lost, idle := dial(t, p), dial(t, p)
	for _, c := range []*peer{lost, idle} {
		c.send(ping)
		c.want(pong)
	}
	p.Partition()
	during := dial(t, p)
	lost.send(take)
	during.send(take)
	awaitCounts(t, p, func(n Counts) bool { return n.Dropped == 2 })
	for _, c := range []*peer{lost, idle, during} {
		c.wantSilence()
	}
	if n := p.Counts().Commands; n != 2 {
		t.Errorf("%d commands reached the target, want the 2 from before", n)
	}
	heal(t, p)
	lost.wantEnd(nil, true)
	during.wantEnd(nil, true)
	idle.send(take)
	idle.want(taken)
}

func TestAReplyIsBrokenOffInTheMiddleAndItsConnectionEnds(t *testing.T) {
	half := taken[:len(taken)/2]
	for _, end := range []End{Close, Reset} {
		p := startProxy(t)
		c := dial(t, p)
		c.send(ping)
		c.want(pong)
		p.CutReplies(1, end)
		c.send(take)
		if end == Reset { // a reset may overtake the bytes before it
			half = nil
			if _, err := c.Read(make([]byte, len(taken))); err != nil && !errors.Is(err, syscall.ECONNRESET) {
				t.Error(err)
			}
		}
		c.wantEnd(half, end == Reset)
		again := dial(t, p)
		again.send(take)
		again.want(taken) // only one reply is broken off
	}
}

func TestAfterHalfAReplyAConnectionHangsUntilItHeals(t *testing.T) {
	p := startProxy(t)
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
	heal(t, p)
	c.wantEnd(nil, true)
}

func TestAnswersOfTheProxyComeInTheOrderOfTheCommands(t *testing.T) {
	p := startProxy(t)
	c := dial(t, p)
	loading := []byte("-LOADING Redis is loading the dataset in memory\r\n")
	p.Answer("EvalSha", "-LOADING Redis is loading the dataset in memory")
	p.Delay(ToClient, 20*time.Millisecond)
	c.send(ping, take, ping, take)
	c.want(pong, loading, pong, loading)
	if n := p.Counts(); n.Commands != 2 || n.Answered != 2 {
		t.Errorf("%d commands forwarded and %d answered, want 2 and 2", n.Commands, n.Answered)
	}
	p.Answer("evalsha", "")
	c.send(take)
	c.want(taken)
}

func TestAProxyThatIsDownHasNoConnectionsUntilItHeals(t *testing.T) {
	p := startProxy(t)
	c := dial(t, p)
	c.send(ping)
	c.want(pong)
	require.NoError(t, p.Down())
	c.wantEnd(nil, true)
	if _, err := net.Dial("tcp", p.Address().Name); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connect: %v, want ECONNREFUSED", err)
	}
	heal(t, p)
	again := dial(t, p)
	again.send(ping)
	again.want(pong)
}

func TestFlapHealsAlsoIfItIsCanceled(t *testing.T) {
	p := startProxy(t)
	require.NoError(t, p.Flap(context.Background(), 3, time.Millisecond, time.Millisecond))
	stopped, stop := context.WithCancel(context.Background())
	stop()
	if err := p.Flap(stopped, 3, time.Hour, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}
	c := dial(t, p)
	c.send(ping)
	c.want(pong)
}

func TestFaultsChangeWhileConnectionsAreBusy(t *testing.T) {
	p := startProxy(t)
	ctx, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for ctx.Err() == nil {
				connection, err := net.Dial("tcp", p.Address().Name)
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
		p.Partition, p.Reset, func() { p.CutReplies(3, Hang) }, func() { p.Delay(ToClient, time.Millisecond) },
		func() { p.Answer("evalsha", "-BUSY"); _ = p.Counts() },
	} {
		group.Go(func() {
			for ctx.Err() == nil {
				fault()
				if err := p.Flap(ctx, 1, time.Millisecond, time.Millisecond); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	heal(t, p)
	c := dial(t, p)
	c.send(take)
	c.want(taken)
	closeProxy(t, p)
	if n := p.Counts().Open; n != 0 {
		t.Errorf("%d connections after the end, want 0", n)
	}
}
