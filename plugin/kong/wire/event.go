package wire

import (
	"errors"
	"time"
)

// Event is one phase of one request: the access phase, or the log phase. An instance must not use it after its Access,
// Log or Fault has returned.
type Event struct {
	// Local is the plugin's own memory, such as buffers and caches, for events that come one at a time. It is kept from
	// event to event of a connection, and then for the events of another one; it is nil at first. What it holds may come
	// from any earlier request.
	Local any

	conn    *conn
	began   time.Duration
	exiting bool
	logs    bool // the event is the log phase
}

var (
	errExiting  = errors.New("a question after Exit")
	errLateExit = errors.New("Exit in the log phase: dropped, because the client has its response")
	errLateSet  = errors.New("SetHeaders in the log phase: dropped, because the client has its response")
)

// Began returns when the event began, on the clock of [Server.Elapsed].
func (e *Event) Began() time.Duration { return e.began }

// Ask sends questions in one write and passes the answers to read, in the order of the questions. An answer is valid
// until read returns.
//
// Ask returns the first error of read, or of an answer that is too long, after it has read all answers. It returns
// sooner when the time budget of the event ends, and when the connection breaks.
func (e *Event) Ask(questions []Question, read func(i int, answer []byte) error) error {
	c := e.conn
	switch {
	case len(questions) == 0:
		return nil
	case e.exiting:
		return errExiting
	case c.lost != nil:
		return c.lost
	}
	for _, q := range questions {
		c.out = append(c.out, q...)
	}
	c.queued += len(questions)
	if err := c.flush(); err != nil {
		return err
	}
	c.server.counters.questions.Add(uint64(len(questions)))
	return c.readAnswers(len(questions), read)
}

// Call calls a method whose answer the plugin does not need. message is the encoded message of its arguments. The call
// leaves with the next write.
func (e *Event) Call(method string, message []byte) {
	if c := e.conn; c.lost == nil && !e.exiting {
		c.out = appendFrame(appendFrame(c.out, []byte(method)), message)
		c.queued++
		c.server.counters.questions.Add(1)
	}
}

// SetShared sets a key of kong.ctx.shared to a text, which plugins that run later read, in their log phase too. The
// call leaves with the next write.
func (e *Event) SetShared(key, text string) {
	if c := e.conn; c.lost == nil && !e.exiting {
		c.out = appendSetShared(c.out, key, text)
		c.queued++
		c.server.counters.questions.Add(1)
	}
}

// SetHeaders sets headers of the response to the client. They leave with the next write. In the log phase, where Kong
// would raise an error, they are dropped and counted as a failure.
func (e *Event) SetHeaders(headers []Header) {
	if e.logs {
		e.conn.server.logFailure(errLateSet)
		return
	}
	if c := e.conn; c.lost == nil && !e.exiting && len(headers) > 0 {
		c.out = appendSetHeaders(c.out, headers)
		c.queued++
	}
}

// Exit ends the request with a response of the plugin's own, when Access returns. Nothing may follow it. In the log
// phase it is dropped and counted as a failure.
func (e *Event) Exit(status int, headers []Header, body []byte) {
	if e.logs {
		e.conn.server.logFailure(errLateExit)
		return
	}
	if c := e.conn; c.lost == nil && !e.exiting {
		c.out = appendExit(c.out, status, headers, body)
		e.exiting = true
	}
}
