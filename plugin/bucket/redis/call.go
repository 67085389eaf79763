package redis

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// call is one request to a script: its keys and arguments, and the reply as Redis has sent it. A wire may send several
// as one command. Its memory is used again for the next request, but not after an error: then the command may still be
// on its way, and the reply may still come.
type call struct {
	keys  []string
	args  [][]byte
	reply []byte // RESP

	deadline deadline
	sent     bool // is written, or about to be; under the wire's lock if there is one

	// Of a run over a wire.
	script    *script
	apart     bool          // runs by a command of its own
	abandoned bool          // is not written if it is not yet
	inCommand int           // requests of its command, set when it is sent
	err       error         // set before answered
	answered  chan struct{} // has room for one

	// Of a run by go-redis.
	command *redis.RawWriteToCmd
	sha     string
	count   []byte // of the keys
	values  []any  // what the command sends
	bulks   []bulk
}

// newCall returns a call that is run once.
func newCall(keys []string, args ...string) *call {
	c := &call{keys: keys}
	for _, arg := range args {
		c.args = append(c.args, []byte(arg))
	}
	return c
}

// bulk is an argument of go-redis: a pointer to it fits into an interface.
type bulk []byte

// MarshalBinary implements encoding.BinaryMarshaler.
func (b *bulk) MarshalBinary() ([]byte, error) { return *b, nil }

// keyCount is a call as an argument of go-redis: the number of its keys. That it is encoded shows that go-redis is
// about to write the command.
type keyCount call

// MarshalBinary implements encoding.BinaryMarshaler.
func (c *keyCount) MarshalBinary() ([]byte, error) {
	c.sent = true
	c.count = strconv.AppendInt(c.count[:0], int64(len(c.keys)), 10)
	return c.count, nil
}

// outcome returns err, the error of a run by go-redis, as the error of a call that was not sent if it was not. A call
// whose own time has ended is one whose outcome is unknown all the same. A search by Sentinel has a time of its own.
func (c *call) outcome(ctx context.Context, err error) error {
	if err == nil || c.sent {
		return err
	}
	at, _ := ctx.Deadline()
	if callerTimedOut(err) && (ctx.Err() != nil || !time.Now().Before(at)) {
		return err
	}
	return notSent(err)
}

// forGoRedis returns the command that runs the script and streams the reply into c.
func (c *call) forGoRedis(script *script) *redis.RawWriteToCmd {
	first := 3 + len(c.keys)
	if c.command == nil || c.sha != script.sha || len(c.values) != first+len(c.args) {
		c.sha, c.values = script.sha, make([]any, first+len(c.args))
		c.values[0], c.values[1], c.values[2] = "evalsha", script.sha, (*keyCount)(c)
		c.command = redis.NewRawWriteToCmd(context.Background(), c, c.values...)
	}
	c.sent = false
	c.bulks = c.bulks[:0]
	for _, arg := range c.args {
		c.bulks = append(c.bulks, arg)
	}
	for i := range c.keys {
		c.values[3+i] = &c.keys[i]
	}
	for i := range c.bulks {
		c.values[first+i] = &c.bulks[i]
	}
	c.command.SetErr(nil)
	c.reply = c.reply[:0]
	return c.command
}

// Write adds a part of the reply. It returns the error that the reply is, if it is one, so that go-redis treats it and
// the connection as it does after any command.
func (c *call) Write(part []byte) (int, error) {
	if len(c.reply) == 0 && len(part) > 0 && part[0] == '-' {
		return 0, serverError(part[1:])
	}
	c.reply = append(c.reply, part...)
	return len(part), nil
}

// ReadFrom adds a part of the reply, which is no error.
func (c *call) ReadFrom(r io.Reader) (int64, error) {
	from := len(c.reply)
	for {
		c.reply = slices.Grow(c.reply, 256)
		end := len(c.reply)
		n, err := r.Read(c.reply[end:cap(c.reply)])
		c.reply = c.reply[:end+n]
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return int64(len(c.reply) - from), err
		}
	}
}

// appendCommand appends the command that runs calls of one script, as RESP.
func appendCommand(b []byte, calls []*call) []byte {
	keys, args := 0, 0
	for _, c := range calls {
		keys, args = keys+len(c.keys), args+len(c.args)
	}
	b = append(b, '*')
	b = strconv.AppendInt(b, int64(3+keys+args), 10)
	b = append(b, "\r\n$7\r\nevalsha\r\n"...)
	b = appendBulk(b, calls[0].script.sha)
	b = appendBulk(b, strconv.Itoa(keys))
	for _, c := range calls {
		for _, key := range c.keys {
			b = appendBulk(b, key)
		}
	}
	for _, c := range calls {
		for _, arg := range c.args {
			b = appendBulk(b, arg)
		}
	}
	return b
}

// setReplies records the reply of the command that has run calls, which may be an error.
func setReplies(calls []*call, reply []byte) error {
	if reply[0] == '-' {
		err := serverError(reply[1 : len(reply)-2])
		for _, c := range calls {
			c.err = err
		}
		return nil
	}
	if len(calls) == 1 {
		calls[0].reply = append(calls[0].reply[:0], reply...)
		return nil
	}
	e := elements{left: reply}
	if e.array() != len(calls) {
		return fmt.Errorf("%w: want the replies to %d requests", errReply, len(calls))
	}
	for _, c := range calls {
		n, err := replyLength(e.left)
		if err != nil || n == 0 {
			return cmp.Or(err, errSyntax)
		}
		c.reply = append(append(c.reply[:0], "*1\r\n"...), e.left[:n]...) // as to a command of its own
		e.left = e.left[n:]
	}
	return nil
}

func appendBulk[text string | []byte](b []byte, value text) []byte {
	b = append(b, '$')
	b = strconv.AppendInt(b, int64(len(value)), 10)
	b = append(b, "\r\n"...)
	b = append(b, value...)
	return append(b, "\r\n"...)
}

// deadline is the context of a call that ends after some time. Unlike one of [context.WithTimeout] it is used again, so
// it costs no allocation. Its Done closes at the deadline only: what waits for long has to watch the caller's context
// too. go-redis, which gets it, waits for a connection without that, and no longer than the deadline.
type deadline struct {
	context.Context // the caller's
	at              time.Time
	passed          chan struct{}
	timer           *time.Timer // closes passed
}

// callerContext returns the caller's context, of which a deadline has the values and the cancellation.
func callerContext(ctx context.Context) context.Context {
	if d, ok := ctx.(*deadline); ok {
		return d.Context
	}
	return ctx
}

// start begins the time of a call, which the caller's context can shorten.
func (d *deadline) start(ctx context.Context, timeout time.Duration) {
	d.Context, d.at = ctx, time.Now().Add(timeout)
	if earlier, ok := ctx.Deadline(); ok && earlier.Before(d.at) {
		d.at, timeout = earlier, time.Until(earlier)
	}
	if d.timer != nil {
		d.timer.Reset(timeout)
		return
	}
	passed := make(chan struct{})
	d.passed, d.timer = passed, time.AfterFunc(timeout, func() { close(passed) })
}

// stop ends the time of a call.
func (d *deadline) stop() {
	if !d.timer.Stop() {
		d.timer = nil // passed is closed, or about to be
	}
	d.Context = context.Background() // go-redis has had it
}

// Deadline implements context.Context.
func (d *deadline) Deadline() (time.Time, bool) { return d.at, true }

// Done implements context.Context.
func (d *deadline) Done() <-chan struct{} { return d.passed }

// Err implements context.Context.
func (d *deadline) Err() error {
	select {
	case <-d.passed:
		return context.DeadlineExceeded
	default:
		return d.Context.Err()
	}
}

// transport runs scripts where a key's bucket lives.
type transport interface {
	// Groups reports whether buckets of different groups may live on different servers (Cluster). On a single Redis one
	// script takes all bounds.
	Groups() bool
	// Run runs a script with EVALSHA at the server that owns the first of c's keys, which are in one slot, and leaves the
	// reply in c. It takes one round trip unless the script is missing there, which is healed once. It does not retry a
	// script that may have run: such an outcome is an [Error] of kind Unknown. After an error c must not be used again.
	Run(ctx context.Context, script *script, c *call) error
	// Probe calls every server whose gate admits it.
	Probe(ctx context.Context)
}
