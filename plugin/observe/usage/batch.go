package usage

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds of a batch.
const (
	MaxRows    = 4096    // of a batch
	MaxName    = 1024    // bytes of a tenant, an endpoint or a policy
	MaxPayload = 1 << 20 // bytes of an encoded batch

	// maxText bounds the bytes of a batch before compression.
	maxText = 2 << 20
	// maxSpan bounds the time that a batch spans.
	maxSpan = 24 * time.Hour
	// epochBytes is half the digits of an epoch.
	epochBytes = 8
	// version is the version of the form of a batch. A new field that a reader may ignore does not change it.
	version = 2
)

// Batch holds what a reporter's process counted in a span of time.
type Batch struct {
	Epoch string        `json:"epoch"`         // 16 hexadecimal digits, random for each reporter
	Seq   int64         `json:"seq"`           // from 1, one more for each batch of an epoch
	Span  time.Duration `json:"span,omitzero"` // the batch ended this long after it began
	Rows  []Row         `json:"rows,omitzero"` // each key once; none: the process lives, and counted nothing

	Denials []Denials    `json:"denials,omitzero"` // each tenant once
	Tiers   []Tier       `json:"tiers,omitzero"`   // each once, in the order in which they were seen last
	Models  []ModelCalls `json:"models,omitzero"`  // each tenant and model once
}

type form struct {
	Version int `json:"version"`
	*Batch
}

// MarshalBinary implements encoding.BinaryMarshaler: JSON, compressed by gzip, which adds a checksum.
func (b *Batch) MarshalBinary() ([]byte, error) {
	text, err := json.Marshal(form{version, b})
	if err != nil {
		return nil, fmt.Errorf("encode a batch of usage: %w", err)
	}
	var packed bytes.Buffer
	writer, _ := gzip.NewWriterLevel(&packed, gzip.BestSpeed) // the level is valid
	_, err = writer.Write(text)
	if err = errors.Join(err, writer.Close()); err == nil && (len(text) > maxText || packed.Len() > MaxPayload) {
		err = errLong
	}
	if err != nil {
		return nil, fmt.Errorf("encode a batch of usage: %w", err)
	}
	return packed.Bytes(), nil
}

var errLong = fmt.Errorf("it has more than %d bytes", MaxPayload)

// UnmarshalBinary implements encoding.BinaryUnmarshaler. It returns an error for what no reporter writes: a node may be
// hostile.
func (b *Batch) UnmarshalBinary(packed []byte) error {
	read, err := decodeBatch(packed)
	if err == nil {
		err = read.check()
	}
	if err != nil {
		return fmt.Errorf("decode a batch of usage: %w", err)
	}
	*b = *read
	return nil
}

func decodeBatch(packed []byte) (*Batch, error) {
	if len(packed) > MaxPayload {
		return nil, errLong
	}
	reader, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(reader, maxText+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxText {
		return nil, errLong
	}
	read := form{Batch: new(Batch)}
	if err := json.Unmarshal(text, &read); err != nil {
		return nil, err
	}
	if read.Version != version {
		return nil, fmt.Errorf("it has version %d, want %d", read.Version, version)
	}
	return read.Batch, nil
}

func (b *Batch) check() error {
	if b.Span < 0 || b.Span > maxSpan {
		return fmt.Errorf("it spans %v, more than %v", b.Span, maxSpan)
	}
	if len(b.Rows) > MaxRows || len(b.Denials) > MaxDenials || len(b.Tiers) > MaxTiers || len(b.Models) > MaxModels {
		return fmt.Errorf("it has %d rows, the denials of %d tenants, %d tiers and %d models, more than %d, %d, %d or %d",
			len(b.Rows), len(b.Denials), len(b.Tiers), len(b.Models), MaxRows, MaxDenials, MaxTiers, MaxModels)
	}
	for i := range b.Rows {
		if r := &b.Rows[i]; !r.valid() || !validNames(r.Tenant, r.Endpoint, r.Policy) {
			return fmt.Errorf("a number or a name of row %d is out of bounds", i)
		}
	}
	for i := range b.Denials {
		if n := &b.Denials[i]; !n.valid() || !validNames(n.Tenant) {
			return fmt.Errorf("a number or a name of the denials %d is out of bounds", i)
		}
	}
	for i := range b.Tiers {
		if t := &b.Tiers[i]; t.Tenant == "" || t.Tier == "" || !validNames(t.Tenant, t.Namespace, t.Tier, t.Source) {
			return fmt.Errorf("a name of tier %d is missing or out of bounds", i)
		}
	}
	for i := range b.Models {
		if m := &b.Models[i]; !m.valid() || !validNames(m.Tenant, m.Model) {
			return fmt.Errorf("a number or a name of model %d is out of bounds", i)
		}
	}
	return nil
}

// validNames reports whether names can be in a batch: Postgres stores no other text.
func validNames(names ...string) bool {
	for _, name := range names {
		if len(name) > MaxName || !utf8.ValidString(name) || strings.IndexByte(name, 0) >= 0 {
			return false
		}
	}
	return true
}
