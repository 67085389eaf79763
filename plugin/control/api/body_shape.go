package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
)

// Bounds of a body's shape. They are checked while it arrives; a body that exceeds one is not decoded.
const (
	maxDepth  = 32        // of nested values
	maxNames  = 64        // of one object
	maxItems  = maxChecks // of one list
	maxValues = 2000      // of the body
	maxString = 48 << 10  // bytes of one string as written: more than any field accepts with every character escaped
	maxNumber = 1 << 10   // bytes of one number
)

// shapeCounter counts the values of a body as it arrives, without decoding them. It does not check that the body is
// JSON; its counts are right for every body that is. The zero value stands before the first byte.
type shapeCounter struct {
	seen     int  // bytes
	inString bool // the next byte is in a string
	escaped  bool // the next byte follows a backslash
	begun    int  // offset of the last string
	number   int  // bytes so far of the current number or word

	open   []extent // the open objects and lists, outermost first
	values int
	items  int // of the longest list
}

// extent is an open object or list.
type extent struct {
	list     bool
	members  int  // including the current one
	named    bool // in an object: the name of the current member is complete
	from, to int  // in an object: the offsets of the last string
}

// shapeError reports a body that exceeds a bound.
type shapeError struct {
	status        int
	path, problem string
}

func (e *shapeError) Error() string { return e.path + " " + e.problem }

// count reads the bytes that were added to body since the last call. The error is a *shapeError; after one the body
// need not be read further.
func (s *shapeCounter) count(body []byte) error {
	for ; s.seen < len(body); s.seen++ {
		if s.inString {
			if err := s.skipString(body); err != nil {
				return err
			}
			continue
		}
		if err := s.token(body, body[s.seen]); err != nil {
			return err
		}
	}
	return nil
}

// skipString advances to the end of a string, or to the last byte of body.
func (s *shapeCounter) skipString(body []byte) error {
	for ; s.seen < len(body); s.seen++ {
		switch c := body[s.seen]; {
		case s.escaped:
			s.escaped = false
		case c == '\\':
			s.escaped = true
		case c == '"':
			s.inString = false
			if top := s.top(); top != nil && !top.list && !top.named {
				top.from, top.to = s.begun, s.seen+1
			}
			return nil
		}
		if s.seen-s.begun > maxString {
			return s.exceeds(body, s.enclosing(), "is a string of more than %d bytes", maxString)
		}
	}
	s.seen-- // count advances by one
	return nil
}

// enclosing returns the objects and lists around the current value. The name of a member is not a value.
func (s *shapeCounter) enclosing() []extent {
	if top := s.top(); top != nil && !top.list && !top.named {
		return s.open[:len(s.open)-1]
	}
	return s.open
}

// top returns the innermost open object or list, or nil.
func (s *shapeCounter) top() *extent {
	if len(s.open) == 0 {
		return nil
	}
	return &s.open[len(s.open)-1]
}

// token counts one byte outside of strings.
func (s *shapeCounter) token(body []byte, c byte) error {
	top, number := s.top(), s.number
	s.number = 0
	switch c {
	case ' ', '\t', '\r', '\n':
		return nil
	case '}', ']':
		if top != nil {
			s.open = s.open[:len(s.open)-1]
		}
		return nil
	case ',', ':':
		return s.separator(body, c, top)
	}
	if top != nil && top.list && top.members == 0 {
		if err := s.member(body, top); err != nil {
			return err
		}
	}
	switch c {
	case '"':
		s.inString, s.begun = true, s.seen
	case '{', '[':
		if len(s.open) == maxDepth {
			problem := fmt.Sprintf("has values nested more than %d deep", maxDepth)
			return &shapeError{http.StatusBadRequest, "body", problem}
		}
		s.open = append(s.open, extent{list: c == '['})
	default:
		if s.number = number + 1; s.number > maxNumber {
			problem := fmt.Sprintf("is a number, or no JSON, of more than %d bytes", maxNumber)
			return &shapeError{http.StatusBadRequest, pathTo(body, s.enclosing()), problem}
		}
	}
	return nil
}

// separator counts what a comma or a colon starts: the next item of a list, or the value of a name.
func (s *shapeCounter) separator(body []byte, c byte, top *extent) error {
	switch {
	case top == nil:
	case c == ',' && top.list:
		return s.member(body, top)
	case c == ',':
		top.named = false
	case !top.list && !top.named:
		top.named = true
		return s.member(body, top)
	}
	return nil
}

// member counts one more member of an object or list.
func (s *shapeCounter) member(body []byte, of *extent) error {
	of.members++
	s.values++
	if of.list {
		s.items = max(s.items, of.members)
	}
	switch {
	case of.list && of.members > maxItems:
		return s.exceeds(body, s.open[:len(s.open)-1], "has more than %d items", maxItems)
	case !of.list && of.members > maxNames:
		return s.exceeds(body, s.open[:len(s.open)-1], "has more than %d names", maxNames)
	case s.values > maxValues:
		return &shapeError{http.StatusUnprocessableEntity, "body", fmt.Sprintf("has more than %d values", maxValues)}
	}
	return nil
}

// exceeds returns the fault of the value within the given objects and lists.
func (s *shapeCounter) exceeds(body []byte, in []extent, problem string, bound int) error {
	return &shapeError{http.StatusUnprocessableEntity, pathTo(body, in), fmt.Sprintf(problem, bound)}
}

// pathTo returns the path of the value within the given objects and lists.
func pathTo(body []byte, in []extent) string {
	path := []byte("body")
	for _, e := range in {
		if e.list {
			path = fmt.Appendf(path, "[%d]", e.members-1)
			continue
		}
		path = fmt.Appendf(path, ".%s", nameOf(body[e.from:e.to]))
	}
	return string(path)
}

// nameOf returns a name as a path shows it: shortened, and readable even if it is not JSON.
func nameOf(raw []byte) string {
	var name string
	if json.Unmarshal(raw, &name) != nil {
		name = string(bytes.Trim(raw, `"`))
	}
	return shorten(name)
}
