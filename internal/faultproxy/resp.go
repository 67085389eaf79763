package faultproxy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

const (
	// maxLength bounds the length in one header, in bytes or elements. It exceeds those of tests.
	maxLength = 64 << 20
	// maxDepth bounds the nesting of values.
	maxDepth = 32
)

// readValue reads one RESP value, a command or a reply with its elements, and returns its bytes. A line that begins
// with no type of RESP is an inline command, which is a value too. readValue returns io.EOF if there are no more bytes.
func readValue(r *bufio.Reader) ([]byte, error) {
	value, err := appendValue(nil, r, 0)
	if errors.Is(err, io.EOF) && len(value) > 0 {
		err = io.ErrUnexpectedEOF
	}
	return value, err
}

func appendValue(to []byte, r *bufio.Reader, depth int) ([]byte, error) {
	if depth > maxDepth {
		return to, fmt.Errorf("read a RESP value: nested deeper than %d", maxDepth)
	}
	begin := len(to)
	to, err := appendLine(to, r)
	if err != nil {
		return to, err
	}
	line := to[begin:]
	switch line[0] {
	case '$', '=', '!':
		n, err := length(line)
		if err != nil || n < 0 {
			return to, err
		}
		return appendBytes(to, r, n+len("\r\n"))
	case '*', '~', '>':
		n, err := length(line)
		if err != nil {
			return to, err
		}
		return appendValues(to, r, n, depth)
	case '%':
		n, err := length(line)
		if err != nil {
			return to, err
		}
		return appendValues(to, r, 2*n, depth)
	case '|': // attributes, and then the value that has them
		n, err := length(line)
		if err != nil {
			return to, err
		}
		return appendValues(to, r, 2*n+1, depth)
	}
	return to, nil
}

func appendValues(to []byte, r *bufio.Reader, n, depth int) ([]byte, error) {
	var err error
	for range n { // a negative n is null
		if to, err = appendValue(to, r, depth+1); err != nil {
			return to, err
		}
	}
	return to, nil
}

// appendLine appends a line with its end. It has at least one byte.
func appendLine(to []byte, r *bufio.Reader) ([]byte, error) {
	for {
		part, err := r.ReadSlice('\n')
		to = append(to, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return to, err
		}
	}
}

func appendBytes(to []byte, r *bufio.Reader, n int) ([]byte, error) {
	begin := len(to)
	to = append(to, make([]byte, n)...)
	read, err := io.ReadFull(r, to[begin:])
	return to[:begin+read], err
}

// length returns the number in the header of a value.
func length(line []byte) (int, error) {
	n, err := strconv.Atoi(string(bytes.TrimRight(line[1:], "\r\n")))
	if err != nil || n < -1 || n > maxLength {
		return 0, fmt.Errorf("read a RESP value: %q announces no length", line)
	}
	return n, nil
}

// commandName returns the name of a command in lower case, or "" if it has none.
func commandName(command []byte) string {
	if command[0] != '*' {
		name, _, _ := bytes.Cut(bytes.TrimRight(command, "\r\n"), []byte(" "))
		return string(bytes.ToLower(name))
	}
	lines := bytes.SplitN(command, []byte("\r\n"), 4) // word count, length of the first word, first word, other bytes
	if len(lines) < 4 {
		return ""
	}
	return string(bytes.ToLower(lines[2]))
}
