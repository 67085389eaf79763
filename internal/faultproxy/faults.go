package faultproxy

import (
	"context"
	"errors"
	"maps"
	"strings"
	"time"
)

// Direction selects one of the two directions of bytes.
type Direction uint8

// The directions.
const (
	ToServer Direction = iota // commands
	ToClient                  // replies
)

// End selects what happens to a connection after half a reply.
type End uint8

// The ends.
const (
	Hang  End = iota // it stays open, and nothing passes
	Close            // it is closed in the orderly way
	Reset            // it is reset (RST)
)

// faults are the faults of a proxy. The zero value has none.
type faults struct {
	delay     [2]time.Duration  // by direction
	partition bool              // drop everything
	cuts      int               // replies still to break off; negative: all
	cutEnd    End               // what happens to the connection then
	answers   map[string]string // command, in lower case → reply
}

// Delay delays every message in one direction by d. Messages on their way keep their earlier delay. The order of
// messages does not change.
func (p *Proxy) Delay(direction Direction, d time.Duration) {
	p.change(func(f *faults) { f.delay[direction] = d })
}

// Partition drops all commands and replies. Connections stay open, and new ones are accepted. Heal ends the partition
// and resets the connections that lost bytes.
func (p *Proxy) Partition() {
	p.change(func(f *faults) { f.partition = true })
}

// CutReplies breaks off the next n replies of all connections after half their bytes, and ends their connections in the
// given way. A negative n breaks off every reply until Heal.
func (p *Proxy) CutReplies(n int, end End) {
	p.change(func(f *faults) { f.cuts, f.cutEnd = n, end })
}

// Answer answers a command with a RESP value, such as "-LOADING Redis is loading". The last end of line is optional.
// The target does not get the command. An empty reply ends the fault of this command.
func (p *Proxy) Answer(command, reply string) {
	if reply != "" && !strings.HasSuffix(reply, "\r\n") {
		reply += "\r\n"
	}
	p.change(func(f *faults) {
		answers := maps.Clone(f.answers) // connections may be reading the old one
		if answers == nil {
			answers = map[string]string{}
		}
		delete(answers, strings.ToLower(command))
		if reply != "" {
			answers[strings.ToLower(command)] = reply
		}
		f.answers = answers
	})
}

// Reset resets all connections at once.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resets++
	p.resetMatching(func(*conn) bool { return true })
}

// Down stops listening and resets open connections, as if the process of a server had ended.
func (p *Proxy) Down() error {
	err := p.StopListening()
	p.Reset()
	return err
}

// Heal ends all faults and listens again. It resets connections that have lost bytes, because they are unusable.
func (p *Proxy) Heal() error {
	p.mu.Lock()
	p.faults = faults{}
	p.resetMatching(func(c *conn) bool { return c.lossy.Load() })
	p.mu.Unlock()
	return p.Listen()
}

// Flap calls Down and Heal that many times. down and up are the durations between them. If ctx ends, Flap heals and
// returns the error of ctx.
func (p *Proxy) Flap(ctx context.Context, times int, down, up time.Duration) error {
	for range times {
		if err := p.Down(); err != nil {
			return errors.Join(err, p.Heal())
		}
		wait(ctx.Done(), down)
		if err := p.Heal(); err != nil {
			return err
		}
		wait(ctx.Done(), up)
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// wait waits for d, or until done. It reports whether d has passed.
func wait(done <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-done:
		return false
	}
}

// change changes the faults.
func (p *Proxy) change(by func(*faults)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	by(&p.faults)
}

// currentFaults returns the present faults.
func (p *Proxy) currentFaults() faults {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults
}

// takeCut reports whether to break off a reply, and returns what happens to its connection. It counts the reply.
func (p *Proxy) takeCut() (End, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.faults.cuts == 0 {
		return 0, false
	}
	if p.faults.cuts > 0 {
		p.faults.cuts--
	}
	return p.faults.cutEnd, true
}

// resetMatching resets the connections for which matches returns true. p.mu is held.
func (p *Proxy) resetMatching(matches func(*conn) bool) {
	for c := range p.conns {
		if matches(c) {
			c.end(true)
		}
	}
}
