package policysync

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// codec writes rows as bytes, or reads them; both visit the same fields in the same order. A text is its length and its
// bytes, a number is a varint. It is hand-written for speed: a million rows take about a second.
type codec struct {
	reading bool
	buf     []byte        // written so far, or still to be read
	texts   internedTexts // of a reader
	err     error         // of a reader
}

var errRecord = errors.New("a row is not in the form of its record")

// The kinds of records. The last one has no row.
const (
	recordEnd byte = iota
	recordTier
	recordTenant
	recordPolicy
	recordOverride
	recordCost
	recordCandidate // the first kind that is no row of a table
	recordCandidateTenant
	recordCandidateRow
)

// isRow reports whether records of a kind are rows of tables, which the header counts.
func isRow(kind byte) bool { return kind < recordCandidate }

func (c *codec) tier(r *policy.TierRow) { c.text(&r.Name) }

func (c *codec) tenant(r *schema.Tenant) {
	c.name(&r.ID)
	c.text(&r.Tier)
	c.text(&r.TimeZone)
}

func (c *codec) number(n *int64) {
	if !c.reading {
		c.buf = binary.AppendVarint(c.buf, *n)
		return
	}
	value, length := binary.Varint(c.buf)
	if length <= 0 {
		c.fail()
		return
	}
	*n, c.buf = value, c.buf[length:]
}

// text visits a text that many rows may share; reading keeps one copy of it.
func (c *codec) text(s *string) {
	if c.reading {
		*s = c.texts.intern(c.bytes())
	} else {
		c.name(s)
	}
}

// name visits a text that few rows share.
func (c *codec) name(s *string) {
	if c.reading {
		*s = string(c.bytes())
		return
	}
	c.buf = binary.AppendUvarint(c.buf, uint64(len(*s)))
	c.buf = append(c.buf, *s...)
}

// bytes reads the bytes of a text.
func (c *codec) bytes() []byte {
	length, n := binary.Uvarint(c.buf)
	if n <= 0 || length > uint64(len(c.buf)-n) {
		c.fail()
		return nil
	}
	text := c.buf[n : n+int(length)]
	c.buf = c.buf[n+int(length):]
	return text
}

func (c *codec) boolean(b *bool) {
	n := int64(0)
	if *b {
		n = 1
	}
	c.number(&n)
	*b = n == 1
	if n&^1 != 0 {
		c.fail()
	}
}

// instant visits a time, in microseconds since 1970; a zero time is 0.
func (c *codec) instant(at *time.Time) {
	var n int64
	if !at.IsZero() {
		n = at.UnixMicro()
	}
	if c.number(&n); c.reading && n != 0 {
		*at = time.UnixMicro(n).UTC()
	}
}

// optional visits a number that may be absent.
func (c *codec) optional(p **int64) {
	given := *p != nil
	c.boolean(&given)
	if !given {
		*p = nil
		return
	}
	var n int64
	if *p != nil {
		n = **p
	}
	c.number(&n)
	*p = &n
}

// record visits a record as JSON; an empty text stands for none.
func (c *codec) record(r schema.RecordField) {
	text := ""
	if present := r.Get(); present != nil && !c.reading {
		text = present.JSON()
	}
	if c.text(&text); !c.reading || text == "" {
		return
	}
	if r.Decode([]byte(text)) != nil {
		c.fail()
	}
}

// fail records an error; every further field is empty.
func (c *codec) fail() { c.buf, c.err = nil, errRecord }

// finish returns an error if a field was incomplete, or bytes follow the last one.
func (c *codec) finish() error {
	if c.err == nil && len(c.buf) > 0 {
		c.fail()
	}
	return c.err
}
