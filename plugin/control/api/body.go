package api

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"golang.org/x/sync/semaphore"
)

// Bounds of bodies.
const (
	// maxBody bounds the body of a request, in bytes. The longest that an operation accepts has 50 KiB.
	maxBody = 64 << 10
	// maxBatchBody bounds the body of a batch, in bytes: each of its checks may have ten thousand.
	maxBatchBody = 1 << 20
	// smallBody is the longest body that waits for no other, in bytes.
	smallBody = 16 << 10
	// bodyTime bounds how long a body may take to arrive.
	bodyTime = 5 * time.Second

	// maxLargeBodies bounds the larger bodies in memory. One of them is decoded and answered at a time, so that costly
	// ones keep one processor busy at most.
	maxLargeBodies = 64
	// faultPause is how long the place of a faulty one stays taken, so that those cost a part of that processor.
	faultPause = 20 * time.Millisecond
	// bodyWait bounds how long a body waits to be read. To be decoded it waits as long as the request may take.
	bodyWait = time.Second
)

// largeBodies bounds the bodies above smallBody.
type largeBodies struct{ read, decoded *semaphore.Weighted }

func newLargeBodies() largeBodies {
	return largeBodies{semaphore.NewWeighted(maxLargeBodies), semaphore.NewWeighted(1)}
}

// received is a body in memory, with its values counted and not decoded. The zero value is that of an operation without
// a body.
type received struct {
	body  []byte
	items int   // of its longest list
	fault error // why it is not decoded: a *shapeError, one of the errors below, or nil
}

// Faults of a body as a whole.
var (
	errTooLong = errors.New("the body is too long")
	errLate    = errors.New("the body arrived too slowly")
	errBroken  = errors.New("the body ended early, or its chunks are malformed")
	errBusy    = errors.New("too many large bodies are in progress")
)

// receiveBody reads the body of a request. A large one holds its places until the answer begins.
// A fault is part of the result, because the API's own limits count the request before it is denied.
func (s *Server) receiveBody(ctx huma.Context) (in received) {
	o := ctx.Operation()
	if o.RequestBody == nil {
		return received{}
	}
	x := exchangeOf(ctx.Context())
	in.body, in.fault = s.readBody(ctx, x, o.MaxBodyBytes)
	if in.fault == nil && o.MaxBodyBytes <= maxBatchBody {
		in.items, in.fault = inspect(in.body)
	}
	return in
}

// readBody reads a body of less than most bytes to its end.
func (s *Server) readBody(ctx huma.Context, x *exchange, most int64) ([]byte, error) {
	if x.length >= most {
		return nil, errTooLong
	}
	// Without a connection there is no deadline to set.
	_ = ctx.SetReadDeadline(time.Now().Add(bodyTime))
	var body bytes.Buffer
	from := http.MaxBytesReader(nil, io.NopCloser(ctx.BodyReader()), most-1)
	if _, err := io.CopyN(&body, from, smallBody); err != nil {
		return body.Bytes(), readFault(err)
	}
	waiting, cancel := context.WithTimeout(ctx.Context(), bodyWait)
	defer cancel()
	if err := x.enter(waiting, s.bodies.read); err != nil {
		return nil, cmp.Or(ctx.Context().Err(), errBusy)
	}
	body.Grow(int(max(x.length, 0)) + bytes.MinRead)
	if _, err := body.ReadFrom(from); err != nil {
		return nil, readFault(err)
	}
	_ = ctx.SetReadDeadline(time.Time{}) // it may wait for longer
	return body.Bytes(), x.enter(ctx.Context(), s.bodies.decoded)
}

// readFault returns the fault of a body whose reader returned err, or nil for io.EOF. Any other error comes from the
// client or its connection.
func readFault(err error) error {
	late, long := net.Error(nil), new(http.MaxBytesError)
	switch {
	case err == nil, errors.Is(err, io.EOF):
		return nil
	case errors.As(err, &long):
		return errTooLong
	case errors.As(err, &late) && late.Timeout():
		return errLate
	}
	return errBroken
}

// enter takes a place among the large bodies until the exchange releases it.
func (x *exchange) enter(ctx context.Context, places *semaphore.Weighted) error {
	err := places.Acquire(ctx, 1)
	if err == nil {
		x.releases = append(x.releases, func() { places.Release(1) })
	}
	return err
}

// release gives up the places that the exchange holds, after a fault with a pause.
func (x *exchange) release() {
	for _, release := range x.releases {
		if x.status >= http.StatusBadRequest {
			time.AfterFunc(faultPause, release)
		} else {
			release()
		}
	}
	x.releases = nil
}

// cost returns how many requests the body counts as in the API's own limits: the checks of a batch, else 1.
func (in *received) cost() int64 {
	if in.fault != nil {
		return 1
	}
	return max(int64(in.items), 1)
}

// writeBodyProblem answers a request whose body is not decoded.
func (s *Server) writeBodyProblem(ctx huma.Context, fault error) {
	wrong := new(shapeError)
	switch {
	case errors.As(fault, &wrong):
		s.writeProblem(ctx, wrong.status, invalidRequest, &huma.ErrorDetail{Location: wrong.path, Message: wrong.problem})
	case errors.Is(fault, errTooLong):
		most := ctx.Operation().MaxBodyBytes
		s.writeProblem(ctx, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body must have less than %d bytes", most))
	case errors.Is(fault, errLate):
		s.writeProblem(ctx, http.StatusRequestTimeout, fmt.Sprintf("the body must arrive within %v", bodyTime))
	case errors.Is(fault, errBroken):
		const detail = "the body cannot be read: it ends early, or its chunks are malformed"
		s.writeProblem(ctx, http.StatusBadRequest, detail)
	case errors.Is(fault, context.Canceled): // the client closed the connection
		s.writeProblem(ctx, http.StatusBadRequest, "the connection ended before the request was decoded")
	case errors.Is(fault, errBusy):
		s.metrics.busy.Inc()
		ctx.SetHeader("Retry-After", "1")
		s.writeProblem(ctx, http.StatusServiceUnavailable,
			"this process has too many large request bodies in progress; retry in a moment")
	default: // ctx ended
		s.writeProblem(ctx, http.StatusServiceUnavailable, "the time for the request ended before its body was decoded")
	}
}

// replayedContext is a huma.Context whose body is in memory.
type replayedContext struct {
	humaContext
	body io.Reader
}

// humaContext is huma.Context under a name that does not collide with its method Context when it is embedded.
type humaContext huma.Context

// replayBody returns ctx with the body to be read from memory.
func (in *received) replayBody(ctx huma.Context) huma.Context {
	if in.body == nil {
		return ctx
	}
	return replayedContext{ctx, bytes.NewReader(in.body)}
}

// BodyReader implements [huma.Context].
func (r replayedContext) BodyReader() io.Reader { return r.body }
