// Package jsonwalk reads valid JSON in place, without a tree of its values.
package jsonwalk

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// Cursor is a place in a JSON text. The text must be valid (json.Valid): the methods do not check what comes next.
type Cursor struct {
	Text []byte
	At   int // offset of what is read next
}

// SkipSpace advances past white space.
func (c *Cursor) SkipSpace() {
	for c.Text[c.At] <= ' ' {
		c.At++
	}
}

// EachMember calls visit for each member of the object that comes next. visit must read the value; key is as written,
// without its quotes.
func (c *Cursor) EachMember(visit func(key []byte)) {
	for c.At++; c.more(); {
		from := c.At + 1
		c.SkipString()
		key := c.Text[from : c.At-1]
		c.SkipSpace()
		c.At++ // the colon
		c.SkipSpace()
		visit(key)
	}
}

// EachItem calls visit for each item of the list that comes next. visit must read it.
func (c *Cursor) EachItem(visit func()) {
	for c.At++; c.more(); {
		visit()
	}
}

// more advances to the next member or item of the open object or list, or past its end, and reports which.
func (c *Cursor) more() bool {
	for {
		c.SkipSpace()
		switch c.Text[c.At] {
		case ',':
			c.At++
		case '}', ']':
			c.At++
			return false
		default:
			return true
		}
	}
}

// SkipValue advances past the value that comes next, however deep it is.
func (c *Cursor) SkipValue() {
	for depth := 0; ; {
		switch c.Text[c.At] {
		case '"':
			c.SkipString()
		case '{', '[':
			depth++
			c.At++
		case '}', ']':
			depth--
			c.At++
		case ' ', '\t', '\r', '\n', ',', ':':
			c.At++
			continue
		default:
			c.skipWord()
		}
		if depth == 0 {
			return
		}
	}
}

// SkipString advances past the string that comes next.
func (c *Cursor) SkipString() {
	for c.At++; c.Text[c.At] != '"'; c.At++ {
		if c.Text[c.At] == '\\' {
			c.At++
		}
	}
	c.At++
}

// skipWord advances past the number, boolean or null that comes next.
func (c *Cursor) skipWord() {
	for c.At < len(c.Text) && strings.IndexByte(" \t\r\n,:]}", c.Text[c.At]) < 0 {
		c.At++
	}
}

// IsKey reports whether a key, as written in JSON, is a name.
func IsKey(key []byte, name string) bool {
	return string(key) == name || string(Unescaped(key)) == name
}

// Unescaped returns a key without its escapes.
func Unescaped(key []byte) []byte {
	if bytes.IndexByte(key, '\\') < 0 {
		return key
	}
	var text string
	if err := json.Unmarshal(slices.Concat([]byte(`"`), key, []byte(`"`)), &text); err != nil {
		return key
	}
	return []byte(text)
}
