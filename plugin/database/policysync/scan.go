package policysync

import (
	"math"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// The destinations of columns. A NULL becomes the zero value; package policy checks whether that is valid.

// internedText scans a text that many rows may share, and keeps one copy of it.
type internedText struct {
	to    *string
	texts internedTexts
}

// ScanBytes implements pgtype.BytesScanner.
func (t internedText) ScanBytes(text []byte) error {
	*t.to = t.texts.intern(clip(text))
	return nil
}

// ownText scans a text that few rows share.
type ownText struct{ to *string }

// ScanBytes implements pgtype.BytesScanner.
func (t ownText) ScanBytes(text []byte) error {
	*t.to = string(clip(text))
	return nil
}

// maxText bounds the kept part of a text, in bytes. Package policy reports a fault for longer texts.
const maxText = 4096

func clip(text []byte) []byte {
	if len(text) <= maxText {
		return text
	}
	text = text[:maxText]
	for len(text) > maxText-utf8.UTFMax && !utf8.Valid(text) {
		text = text[:len(text)-1]
	}
	return text
}

// boolean scans a boolean.
type boolean struct{ to *bool }

// ScanBool implements pgtype.BoolScanner.
func (b boolean) ScanBool(v pgtype.Bool) error {
	*b.to = v.Bool
	return nil
}

// record scans a record. What cannot be decoded becomes a faulty record, which is a fault of its row and of no other.
type record struct{ to schema.RecordField }

// ScanBytes implements pgtype.BytesScanner.
func (r record) ScanBytes(text []byte) error {
	_ = r.to.Decode(text) // the row's own check reports it
	return nil
}

// instant scans a timestamp with time zone; infinity becomes the largest instant.
type instant struct{ to *time.Time }

// earliest and latest are the first and the last instant of nodes. Postgres has timestamps before and after them.
var earliest, latest = time.UnixMicro(math.MinInt64).UTC(), time.UnixMicro(math.MaxInt64).UTC()

// ScanTimestamptz implements pgtype.TimestamptzScanner.
func (i instant) ScanTimestamptz(v pgtype.Timestamptz) error {
	switch {
	case !v.Valid:
		*i.to = time.Time{}
	case v.InfinityModifier == pgtype.Infinity || v.Time.After(latest):
		*i.to = latest
	case v.InfinityModifier == pgtype.NegativeInfinity:
		*i.to = earliest
	default:
		*i.to = v.Time.UTC()
	}
	return nil
}

// internedTexts keeps one copy of texts that many rows share.
type internedTexts map[string]string

// maxTexts bounds the number of interned texts. Few texts are shared by many rows.
const maxTexts = 8192

func (t internedTexts) intern(text []byte) string {
	if shared, ok := t[string(text)]; ok {
		return shared
	}
	s := string(text)
	if len(t) < maxTexts {
		t[s] = s
	}
	return s
}
