package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// Bounds of bodies that are not decoded yet. A body is read and its values are counted before any is decoded.
const (
	// maxBody bounds the body of a request, in bytes. The longest that an operation accepts has 50 KiB.
	maxBody = 64 << 10
	// maxBatchBody bounds the body of a batch, in bytes: each of its checks may have ten thousand.
	maxBatchBody = 1 << 20
	// smallBody is the longest body that is read outside the budget, in bytes: as much as the connection itself
	// buffers.
	smallBody = 16 << 10
	// readStep is how many bytes are read before the values in them are counted.
	readStep = 16 << 10
	// bodyTime bounds how long a body may take to arrive.
	bodyTime = 5 * time.Second

	// readingBudget and readingBudgetPerToken bound the longer bodies that are being read, in bytes.
	readingBudget         = 64 << 20
	readingBudgetPerToken = 4 * maxBatchBody
	// decodingBudgetPerToken bounds the bodies of one token that are decoded at the same time, in bytes. The longest
	// body takes all of it, so one token keeps one processor busy with decoding, and not the others.
	decodingBudgetPerToken = maxBatchBody
	// leastDecoded is what the shortest bodies count as when they are decoded, in bytes.
	leastDecoded = 1 << 10
	// budgetTimeout bounds how long a body waits for budget.
	budgetTimeout = time.Second
)

// bodyBudgets bound the bodies that are being read, and those that are being decoded.
type bodyBudgets struct{ reading, decoding *byteBudget }

func newBodyBudgets() bodyBudgets {
	all := int64(max(runtime.GOMAXPROCS(0), 4)) * decodingBudgetPerToken
	return bodyBudgets{
		newByteBudget(readingBudget, readingBudgetPerToken, budgetTimeout),
		newByteBudget(all, decodingBudgetPerToken, budgetTimeout),
	}
}

// received is a body in memory, with its values counted and not decoded. The zero value is that of an operation without
// a body.
type received struct {
	body  []byte
	items int   // of its longest list
	fault error // why it is not decoded: a *shapeError, one of the errors below, an error of byteBudget.acquire, or nil
}

// Faults of a body as a whole.
var (
	errTooLong = errors.New("the body is too long")
	errLate    = errors.New("the body arrived too slowly")
	errBroken  = errors.New("the body ended early, or its chunks are malformed")
)

// receiveBody reads the body of a request and takes budget to decode it until the answer begins. A fault is part of the
// result, because the API's own limits count the request before it is denied.
func (s *Server) receiveBody(ctx huma.Context, token string) received {
	o := ctx.Operation()
	if o.RequestBody == nil {
		return received{}
	}
	x := exchangeOf(ctx.Context())
	r := bodyReader{ctx: ctx, exchange: x, rooms: &s.bodies, token: token, most: int(o.MaxBodyBytes)}
	body, err := r.readAll()
	if err == nil {
		err = x.acquire(ctx.Context(), s.bodies.decoding, token, max(int64(len(body)), leastDecoded))
	}
	return received{body, r.shape.items, err}
}

// bodyReader reads one body.
type bodyReader struct {
	ctx      huma.Context
	exchange *exchange
	rooms    *bodyBudgets
	token    string
	most     int // the bytes that the operation accepts, plus one
	shape    shapeCounter
}

// readAll reads the body to its end, as long as its shape is within bounds.
func (r *bodyReader) readAll() (body []byte, err error) {
	if r.exchange.length >= int64(r.most) {
		return nil, errTooLong
	}
	body, whole, err := r.readUpTo(make([]byte, 0, bufferFor(r.exchange.length)), min(smallBody, r.most))
	if err != nil || whole {
		return body, err
	}
	long := r.most
	if r.exchange.length >= 0 {
		long = int(r.exchange.length)
	}
	if err = r.exchange.acquire(r.ctx.Context(), r.rooms.reading, r.token, int64(long)); err != nil {
		return body, err
	}
	if r.exchange.length >= 0 {
		body = slices.Grow(body, long+1-len(body))
	}
	body, _, err = r.readUpTo(body, r.most)
	if err == nil && len(body) >= r.most {
		err = errTooLong
	}
	return body, err
}

// bufferFor returns the size of the buffer for the beginning of a body; a length below 0 is unknown.
func bufferFor(length int64) int64 {
	if length < 0 || length >= smallBody {
		return smallBody
	}
	return length + 1 // to read the end
}

// readUpTo reads until the body has so many bytes, and counts its values. whole reports that the body has ended.
func (r *bodyReader) readUpTo(body []byte, most int) (_ []byte, whole bool, err error) {
	// Without a connection there is no deadline to set.
	_ = r.ctx.SetReadDeadline(time.Now().Add(bodyTime))
	from := r.ctx.BodyReader()
	for len(body) < most {
		if len(body) == cap(body) {
			body = slices.Grow(body, 1)
		}
		n, ended := from.Read(body[len(body):min(cap(body), most, len(body)+readStep)])
		body = body[:len(body)+n]
		if err := r.shape.count(body); err != nil {
			return body, false, err
		}
		if ended != nil {
			return body, true, readFault(ended)
		}
	}
	return body, false, nil
}

// readFault returns the fault of a body whose reader returned err, or nil for io.EOF. Any other error comes from the
// client or its connection.
func readFault(err error) error {
	late := net.Error(nil)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case errors.As(err, &late) && late.Timeout():
		return errLate
	}
	return errBroken
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
	const again = "; retry in a moment"
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
	case errors.Is(fault, errTokenBudget):
		s.metrics.busy.WithLabelValues(byToken).Inc()
		ctx.SetHeader("Retry-After", "1")
		s.writeProblem(ctx, http.StatusTooManyRequests, "this token has too many bytes of request bodies in progress"+again)
	case errors.Is(fault, errTotalBudget):
		s.metrics.busy.WithLabelValues(byProcess).Inc()
		ctx.SetHeader("Retry-After", "1")
		s.writeProblem(ctx, http.StatusServiceUnavailable,
			"this process has too many bytes of request bodies in progress"+again)
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

// acquire takes budget for the exchange until its answer begins.
func (x *exchange) acquire(ctx context.Context, budget *byteBudget, token string, bytes int64) error {
	release, err := budget.acquire(ctx, token, bytes)
	if err == nil {
		x.releases = append(x.releases, release)
	}
	return err
}

// release returns the budget that the exchange holds.
func (x *exchange) release() {
	for _, release := range x.releases {
		release()
	}
	x.releases = nil
}
