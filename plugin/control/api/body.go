package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
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

// readBody reads the body of a request to its end, if the operation has one, and inspects it. A large one holds its
// places until the answer begins. The error is an answer.
func (s *Server) readBody(ctx huma.Context) ([]byte, error) {
	o, x := ctx.Operation(), exchangeOf(ctx.Context())
	if o.RequestBody == nil {
		return nil, nil
	}
	if x.length >= o.MaxBodyBytes {
		return nil, readFault(o, &http.MaxBytesError{})
	}
	// Without a connection there is no deadline to set.
	_ = ctx.SetReadDeadline(time.Now().Add(bodyTime))
	var body bytes.Buffer
	from := http.MaxBytesReader(nil, io.NopCloser(ctx.BodyReader()), o.MaxBodyBytes-1)
	_, err := io.CopyN(&body, from, smallBody)
	if err == nil {
		err = s.readLarge(ctx, x, &body, from)
	}
	if err = readFault(o, err); err != nil {
		return nil, err
	}
	most := maxTokens
	if o.MaxBodyBytes > maxBatchBody {
		most = math.MaxInt // of a document its bytes are the bound
	}
	return body.Bytes(), inspect(body.Bytes(), most)
}

// readLarge reads the rest of a large body, and waits until it may be decoded.
func (s *Server) readLarge(ctx huma.Context, x *exchange, body *bytes.Buffer, from io.Reader) error {
	waiting, cancel := context.WithTimeout(ctx.Context(), bodyWait)
	defer cancel()
	if x.enter(waiting, s.reading) != nil {
		s.metrics.busy.Inc()
		return unavailable("this process has too many large request bodies in progress; retry in a moment")
	}
	body.Grow(int(max(x.length, 0)) + bytes.MinRead)
	if _, err := body.ReadFrom(from); err != nil {
		return err
	}
	_ = ctx.SetReadDeadline(time.Time{}) // it may wait for longer
	if x.enter(ctx.Context(), s.decoding) != nil {
		return huma.Error503ServiceUnavailable("the time for the request ended before its body was decoded")
	}
	return nil
}

// readFault returns the answer to a body whose reader returned err, or nil for io.EOF. An error that is no answer comes
// from the client or its connection.
func readFault(o *huma.Operation, err error) error {
	late, long, answer := net.Error(nil), new(http.MaxBytesError), huma.StatusError(nil)
	switch {
	case err == nil, errors.Is(err, io.EOF):
		return nil
	case errors.As(err, &answer):
		return err
	case errors.As(err, &long):
		return huma.NewError(http.StatusRequestEntityTooLarge,
			fmt.Sprintf("the body must have less than %d bytes", o.MaxBodyBytes))
	case errors.As(err, &late) && late.Timeout():
		return huma.NewError(http.StatusRequestTimeout, fmt.Sprintf("the body must arrive within %v", bodyTime))
	}
	return huma.Error400BadRequest("the body cannot be read: it ends early, or its chunks are malformed")
}

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

// checksIn returns how many checks the body of a batch has, and 0 if it has too many.
func checksIn(body []byte) int {
	var batch struct{ Checks []json.RawMessage }
	if json.Unmarshal(body, &batch) != nil || len(batch.Checks) > maxChecks {
		return 0
	}
	return len(batch.Checks)
}
