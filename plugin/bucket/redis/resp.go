package redis

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

const (
	// maxReply bounds a reply in bytes. Replies of the scripts have some hundreds, and some kilobytes for a request with
	// many limits.
	maxReply = 16 << 20
	// minElement is the length of the shortest element of a reply: "_\r\n".
	minElement = 3
)

var (
	errSyntax    = errors.New("parse the reply: not RESP")
	errLongReply = fmt.Errorf("the reply has more than %d bytes", maxReply)
)

// serverError is a reply of Redis that is an error.
type serverError string

func (e serverError) Error() string { return string(e) }

// RedisError marks the errors of Redis, see [redis.Error].
func (serverError) RedisError() {}

// replyLength returns the length of the reply that b begins with, or 0 if b has only a part of it.
func replyLength(b []byte) (int, error) {
	at := 0
	for left := 1; left > 0; left-- {
		kind, n, length, err := readHeader(b[at:])
		if err != nil || length == 0 {
			return 0, err
		}
		at += length
		switch {
		case kind == '$' && n >= 0:
			if at += n + 2; at > len(b) {
				return 0, nil
			}
			if b[at-2] != '\r' || b[at-1] != '\n' {
				return 0, errSyntax
			}
		case kind == '*' && n > 0:
			left += n
		}
	}
	return at, nil
}

// readHeader reads the line that an element begins with: its kind, its number if it has one, and its length; 0: b has
// only a part of it.
func readHeader(b []byte) (kind byte, n, length int, err error) {
	if len(b) == 0 {
		return 0, 0, 0, nil
	}
	end := bytes.IndexByte(b, '\n')
	if end < 0 {
		if len(b) > maxReply {
			err = errLongReply
		}
		return 0, 0, 0, err
	}
	if end < 2 || b[end-1] != '\r' {
		return 0, 0, 0, errSyntax
	}
	switch kind = b[0]; kind {
	case '+', '-', '_': // the last is nil in RESP3
		return kind, 0, end + 1, nil
	case ':':
		if _, err := strconv.ParseInt(string(b[1:end-1]), 10, 64); err != nil {
			return 0, 0, 0, errSyntax
		}
		return kind, 0, end + 1, nil
	case '$', '*':
		size, err := strconv.Atoi(string(b[1 : end-1]))
		if err != nil || size < -1 {
			return 0, 0, 0, errSyntax
		}
		if size > maxReply {
			return 0, 0, 0, errLongReply
		}
		return kind, size, end + 1, nil
	}
	return 0, 0, 0, errSyntax
}

// elements reads the elements of a reply, one after the other. After a fault it has an error and returns zero values.
type elements struct {
	left []byte
	err  error
}

// next returns the first byte of the next element, or 0 at the end.
func (e *elements) next() byte {
	if e.err != nil || len(e.left) == 0 {
		return 0
	}
	return e.left[0]
}

func (e *elements) fail() { e.err = fmt.Errorf("%w: %.40q", errReply, e.left) }

// header reads the first line of an element of a kind, and returns its number.
func (e *elements) header(kind byte) int {
	if e.err != nil {
		return 0
	}
	found, n, length, err := readHeader(e.left)
	if err != nil || length == 0 || found != kind {
		e.fail()
		return 0
	}
	e.left = e.left[length:]
	return n
}

// array returns how many elements the next one has, which follow. It has none where it is nil.
func (e *elements) array() int {
	if e.next() != '*' {
		if e.text() != nil {
			e.fail()
		}
		return 0
	}
	n := e.header('*')
	if n > len(e.left)/minElement {
		e.fail()
		return 0
	}
	return max(n, 0)
}

// sole reads the head of an array, which must have one element.
func (e *elements) sole() {
	if n := e.array(); e.err == nil && n != 1 {
		e.fail()
	}
}

// text returns the bytes of the next element, nil where it is nil. They are valid as long as the reply.
func (e *elements) text() []byte {
	if e.next() == '_' {
		e.header('_')
		return nil
	}
	n := e.header('$')
	if e.err != nil || n < 0 {
		return nil
	}
	if len(e.left) < n+2 || e.left[n] != '\r' || e.left[n+1] != '\n' {
		e.fail()
		return nil
	}
	text := e.left[:n:n]
	e.left = e.left[n+2:]
	return text
}

func (e *elements) integer() int64 {
	line := e.left
	e.header(':')
	if e.err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(string(line[1:len(line)-len(e.left)-2]), 10, 64)
	return n
}

// between returns the next element, an integer of this range; 0 after a fault.
func (e *elements) between(lowest, highest int64) int64 {
	n := e.integer()
	if e.err == nil && (n < lowest || n > highest) {
		e.err = fmt.Errorf("%w: %d is not between %d and %d", errReply, n, lowest, highest)
	}
	if e.err != nil {
		return 0
	}
	return n
}

// end returns the first fault, which may be that there is more.
func (e *elements) end() error {
	if e.err == nil && len(e.left) > 0 {
		e.fail()
	}
	return e.err
}

// integers returns the elements of an array of integers, after which there is nothing else.
func (e *elements) integers() ([]int64, error) {
	numbers := make([]int64, e.array())
	for i := range numbers {
		numbers[i] = e.integer()
	}
	if err := e.end(); err != nil {
		return nil, err
	}
	return numbers, nil
}
