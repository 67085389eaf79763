package control

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

// Bounds of what bodies take before they are values. A body is read, and its values counted, before any value is made.
const (
	// maxBody bounds a request's body, in bytes. The longest that an operation accepts has 50 KiB.
	maxBody = 64 << 10
	// maxBatchBody bounds the body of a batch: each of its checks may have ten thousand bytes.
	maxBatchBody = 1 << 20
	// smallBody is how long a body may be that is read without room: as much as the connection itself takes.
	smallBody = 16 << 10
	// readStep is how much of a body is read before its values are counted, in bytes.
	readStep = 16 << 10
	// bodyTime bounds how long the body of a request may take to arrive.
	bodyTime = 5 * time.Second

	// readingBudget and readingShare bound the bodies that are longer and not decoded yet, in bytes: of all tokens, and of
	// one. A body that arrives slowly takes no more than that.
	readingBudget         = 64 << 20
	readingBudgetPerToken = 4 * maxBatchBody
	// decodingBudgetPerToken bounds the bodies of one token that are decoded at once, in bytes. One of the longest takes all of it,
	// so a token keeps one processor busy with decoding, and not the others.
	decodingBudgetPerToken = maxBatchBody
	// leastDecoded is what a short body counts as where it is decoded.
	leastDecoded = 1 << 10
	// budgetTimeout is how long a body waits for room.
	budgetTimeout = time.Second
)

// rooms are where bodies wait to be read, and then to be decoded.
type bodyBudgets struct{ reading, decoding *byteBudget }

func newBodyBudgets() bodyBudgets {
	all := int64(max(runtime.GOMAXPROCS(0), 4)) * decodingBudgetPerToken
	return bodyBudgets{newByteBudget(readingBudget, readingBudgetPerToken, budgetTimeout), newByteBudget(all, decodingBudgetPerToken, budgetTimeout)}
}

// received is a body in memory, its values counted and not made yet. The zero value is that of an operation without
// one.
type received struct {
	body  []byte
	items int   // of its longest list
	fault error // why it is not decoded: a *shapeError, one of the errors below, an error of room.enter, or nil
}

// What can be wrong with a body as a whole.
var (
	errTooLong = errors.New("the body is too long")
	errLate    = errors.New("the body arrived too slowly")
	errBroken  = errors.New("the body ended early, or its chunks are malformed")
)

// receiveBody reads the body of a request and makes room to decode it, until the answer begins. What is wrong with it is in
// the result, since a request is counted before it is denied.
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
	most     int // bytes that the operation takes, and one more
	shape    shapeCounter
}

// readAll reads the body to its end, as long as its shape is in bounds.
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

// bufferFor returns how much memory the beginning of a body needs; a length below 0 is unknown.
func bufferFor(length int64) int64 {
	if length < 0 || length >= smallBody {
		return smallBody
	}
	return length + 1 // to see the end
}

// readUpTo reads until the body has so many bytes, and counts its values on the way. whole: it has come to the body's end.
func (r *bodyReader) readUpTo(body []byte, most int) (_ []byte, whole bool, err error) {
	// Without a connection there is no deadline, and nothing that comes late.
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

// readFault returns what is wrong with a body whose reader returned err: nothing, if that is its end. Whatever else it
// is, it came from the client or its connection.
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

// cost returns how many requests the body is of the API's own limits. What is no batch counts as one.
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
		s.writeProblem(ctx, http.StatusServiceUnavailable, "this process has too many bytes of request bodies in progress"+again)
	default: // there was no room for it in time
		s.writeProblem(ctx, http.StatusServiceUnavailable, "the time for the request ended before its body was decoded")
	}
}

// replayedContext is a request whose body was read before.
type replayedContext struct {
	humaContext
	body io.Reader
}

// humaContext is a huma.Context under a name that its method Context leaves free.
type humaContext huma.Context

// replayBody returns the request with the body to be read once more.
func (in *received) replayBody(ctx huma.Context) huma.Context {
	if in.body == nil {
		return ctx
	}
	return replayedContext{ctx, bytes.NewReader(in.body)}
}

// BodyReader is huma's.
func (r replayedContext) BodyReader() io.Reader { return r.body }

// acquire takes room for the exchange until its answer begins.
func (x *exchange) acquire(ctx context.Context, room *byteBudget, token string, bytes int64) error {
	leave, err := room.acquire(ctx, token, bytes)
	if err == nil {
		x.releases = append(x.releases, leave)
	}
	return err
}

// release gives back the room that the exchange holds.
func (x *exchange) release() {
	for _, leave := range x.releases {
		leave()
	}
	x.releases = nil
}
