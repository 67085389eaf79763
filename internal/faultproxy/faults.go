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
	Hang  End = iota // it stays open, and nothing passes any more
	Close            // it is closed in the orderly way
	Reset            // it is reset (RST)
)

// faults is what a proxy does to what passes. The zero value does no harm.
type faults struct {
	delay     [2]time.Duration  // by direction
	partition bool              // swallow everything
	cuts      int               // replies still to be broken off; negative: every one
	cutEnd    End               // what then becomes of the connection
	answers   map[string]string // command, in lower case → reply
}

// Delay has every message in one direction arrive later by d than it would. Messages under way keep the delay that
// they began with, and are never overtaken.
func (p *Proxy) Delay(direction Direction, d time.Duration) {
	p.change(func(f *faults) { f.delay[direction] = d })
}

// Partition swallows all commands and replies, while connections stay open and new ones are accepted: the two sides
// hear nothing of each other. Heal ends it, and resets the connections that lost something.
func (p *Proxy) Partition() {
	p.change(func(f *faults) { f.partition = true })
}

// CutReplies breaks the next n replies off after half their bytes, whatever their connection, and ends that in the
// given way; a negative n: every reply until Heal.
func (p *Proxy) CutReplies(n int, end End) {
	p.change(func(f *faults) { f.cuts, f.cutEnd = n, end })
}

// Answer has the proxy answer a command itself with a reply, such as "-LOADING Redis is loading": a RESP value; its
// last end of line may be left out. The target does not see the command. An empty reply ends that for the command.
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
	p.resetAll(func(*conn) bool { return true })
}

// Down refuses new connections and resets those that are open, as when a server's host goes away and says so.
func (p *Proxy) Down() error {
	err := p.Refuse()
	p.Reset()
	return err
}

// Heal ends all faults. Connections in which bytes are missing are reset: there is no going on in them.
func (p *Proxy) Heal() error {
	p.mu.Lock()
	p.faults = faults{}
	p.resetAll(func(c *conn) bool { return c.spoiled.Load() })
	p.mu.Unlock()
	return p.Accept()
}

// Flap goes down and heals that many times, and returns healed. down and up are how long each lasts. It ends early,
// healed, with ctx's error.
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

// wait waits for d, or until done; it tells whether it was for d.
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

func (p *Proxy) change(by func(*faults)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	by(&p.faults)
}

// now returns the present faults.
func (p *Proxy) now() faults {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults
}

// cut reports whether to break off a reply, and what happens to its connection. Each counts once.
func (p *Proxy) cut() (End, bool) {
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

// resetAll resets the connections that which chooses. p.mu is held.
func (p *Proxy) resetAll(which func(*conn) bool) {
	for c := range p.conns {
		if which(c) {
			c.end(true)
		}
	}
}
