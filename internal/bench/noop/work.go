package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"runtime"
	"strings"
)

// work is what each event costs beside the server loop, without any logic: rounds of a loop in this process, and a
// call of Redis with rounds of a loop there.
type work struct {
	rounds      int
	redisRounds int
	redis       chan *bufio.ReadWriter // idle connections; nil: no call
}

// connections is the number of calls of Redis at a time.
const connections = 16

// dial opens connections to the Redis at a unix socket.
func (w *work) dial(ctx context.Context, socket string) error {
	w.redis = make(chan *bufio.ReadWriter, connections)
	for range connections {
		c, err := new(net.Dialer).DialContext(ctx, "unix", socket)
		if err != nil {
			return err
		}
		w.redis <- bufio.NewReadWriter(bufio.NewReader(c), bufio.NewWriter(c))
	}
	return nil
}

// do does the work of one event: one half before the call of Redis, and the other after it.
func (w *work) do() error {
	loop(w.rounds / 2)
	if w.redis != nil {
		c := <-w.redis
		defer func() { w.redis <- c }()
		if err := callRedis(c, w.redisRounds); err != nil {
			return err
		}
	}
	loop(w.rounds - w.rounds/2)
	return nil
}

// callRedis runs a script of some rounds.
func callRedis(c *bufio.ReadWriter, rounds int) error {
	const script = "local x = 0 for i = 1, ARGV[1] do x = x + i % 7 end return 1"
	if _, err := fmt.Fprintf(c, "EVAL %q 0 %d\r\n", script, rounds); err != nil {
		return err
	}
	if err := c.Flush(); err != nil {
		return err
	}
	reply, err := c.ReadString('\n')
	if err == nil && strings.TrimSpace(reply) != ":1" {
		err = fmt.Errorf("redis answered %q", reply)
	}
	return err
}

// loop computes for some rounds.
func loop(rounds int) {
	x := uint64(rounds)
	for range rounds {
		x = x*6364136223846793005 + 1442695040888963407
	}
	runtime.KeepAlive(x)
}
