package wire

import (
	"context"
	"runtime/debug"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// handleCall leaves the answer to a call in c.out. It returns false if the connection must be closed instead.
func (c *conn) handleCall(ctx context.Context, m *call) bool {
	s := c.server
	switch m.command {
	case cmdHandleEvent:
		return c.handleEvent(ctx, m)
	case cmdStartInstance:
		config := parseConfig(m.config)
		in := s.instances.add(config, s.start(config))
		c.out = appendStatus(c.out, m.sequence, s.name, in.id)
	case cmdCloseInstance:
		s.instances.remove(m.instance)
		c.out = appendStatus(c.out, m.sequence, s.name, m.instance)
	default:
		s.log.Warn("call of an unknown kind: answered with an empty return", "sequence", m.sequence)
		c.out = appendReturn(c.out, m.sequence)
	}
	return true
}

// handleEvent handles one event of an instance. It returns false if the connection must be closed. It must be for an
// unknown instance, so that Kong starts it anew.
func (c *conn) handleEvent(ctx context.Context, m *call) bool {
	in := c.server.instances.get(m.instance)
	if in == nil {
		c.server.counters.unknownInstances.Add(1)
		c.server.log.Info("connection closed: Kong named an unknown instance and will start it anew", "instance", m.instance)
		return false
	}
	c.server.counters.events.Add(1)
	sequence := m.sequence // the next frame overwrites m's slices
	usable := true
	switch string(m.event) {
	case PhaseAccess:
		c.event.logs = false
		usable = c.runPhase(ctx, in.Access, in.Fault)
	case PhaseLog:
		c.event.logs = true
		usable = c.runPhase(ctx, in.Log, nil)
	}
	if !usable {
		return false
	}
	c.out = appendReturn(appendFrame(c.out, nil), sequence)
	return true
}

// runPhase runs an instance's function for the current event, unless it is nil. It returns false if the connection must
// be closed: Kong has lost it, or abandons it after an exit.
func (c *conn) runPhase(ctx context.Context, handle func(context.Context, *Event) error, fault func(*Event)) bool {
	if handle == nil {
		return true
	}
	c.event.began, c.event.exiting = c.server.Elapsed(), false
	c.busyUntil.Store(int64(c.event.began + c.server.budget))
	c.protect(ctx, handle, fault)
	c.busyUntil.Store(0)
	if c.lost != nil {
		c.logClose("connection closed during an event, which Kong will replay", c.lost)
		return false
	}
	return !c.event.exiting || c.sendExit()
}

// protect runs handle, and fault if handle panics.
func (c *conn) protect(ctx context.Context, handle func(context.Context, *Event) error, fault func(*Event)) {
	defer func() {
		if cause := recover(); cause != nil {
			c.server.logPanic("an event panicked and was answered as a fault", cause, debug.Stack())
			c.out, c.queued, c.event.exiting = c.out[:0], 0, false // what the event has not sent yet
			if fault != nil {
				fault(&c.event)
			}
		}
	}()
	err := handle(ctx, &c.event)
	if err == nil || c.lost != nil {
		return
	}
	c.server.logFailure(err)
	if isTimeout(err) {
		c.lost = c.net.SetDeadline(time.Time{}) // makes it readable again
	}
}

// sendExit sends the exit that ends the request, and reports whether the connection may be used again. Kong reads the
// exit and abandons the connection without an answer, so the server closes it and does not wait for Kong to do so.
//
// If Kong has answers to send before it reads the exit, the connection stays open for them: else Kong could not send
// them, and would replay the event. A peer that also answers the exit gets the usual end.
func (c *conn) sendExit() bool {
	err := c.flush()
	closes := c.unanswered == 0
	switch {
	case err != nil:
	case closes:
		err = c.net.sendLast()
	default:
		_, err = c.nextFrame()
	}
	if err != nil {
		c.logClose("connection closed after an exit", err)
	}
	return err == nil && !closes
}

// Question is a call of one of Kong's PDK methods with fixed arguments, encoded once: the frame of the method's name
// and the frame of its arguments.
type Question []byte

// NewQuestion returns the question that calls a method with one string as its argument, or with none if it is "".
func NewQuestion(method, argument string) Question {
	return appendFrame(appendFrame(nil, []byte(method)), appendString(nil, argument))
}

// NewNumberQuestion returns a question whose method takes an integer argument, such as kong.response.get_headers.
func NewNumberQuestion(method string, argument int32) Question {
	message := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(argument))
	return appendFrame(appendFrame(nil, []byte(method)), message)
}

var (
	setHeadersMethod = appendFrame(nil, []byte("kong.response.set_headers"))
	setSharedMethod  = appendFrame(nil, []byte("kong.ctx.shared.set"))
	exitMethod       = appendFrame(nil, []byte("kong.response.exit"))
)

// Header is one header of a response.
type Header struct {
	Name  string
	Value []byte
}
