package usage

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds of a batch.
const (
	MaxRows    = 4096    // of a batch
	MaxName    = 1024    // bytes of a tenant, an endpoint or a policy
	MaxPayload = 1 << 20 // bytes of an encoded batch

	// maxNames bounds the bytes of the names in a batch, so that the batch stays within MaxPayload.
	maxNames = MaxPayload / 2
	// maxPlaces bounds the names in a batch.
	maxPlaces = 3*MaxRows + MaxDenials + 4*MaxTiers
	// maxSpan bounds the time that a batch spans.
	maxSpan = 24 * time.Hour
)

// Batch holds what a reporter's process counted in a span of time.
type Batch struct {
	Epoch string        // 16 hexadecimal digits, random for each reporter
	Seq   int64         // from 1, one more for each batch of an epoch
	Span  time.Duration // in whole microseconds: the batch ended this long after it began
	Rows  []Row         // sorted by key, each key once; none: the process lives, and counted nothing

	Denials []Denials // sorted by tenant, each tenant once
	Tiers   []Tier    // each once, those of a tenant one after the other, the one that was seen last at the end
}

// epochBytes is half the digits of an epoch.
const epochBytes = 8

// version is the version of the form of a batch.
const version = 1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// MarshalBinary implements encoding.BinaryMarshaler. A batch has one form only:
//
//	version (1 byte), epoch (8 bytes), seq, span in µs,
//	number of names, each name with its length, sorted: those of tenants, endpoints and policies together,
//	number of rows, each row: 3 places in the list of names, admitted, soft, denied, shadow-denied, cost, remaining+1,
//	number of denials, each: place of the tenant's name, limited, penalized, unavailable, 3 sketches,
//	number of tiers, each: places of the tenant, the namespace, the tier and the source,
//	CRC-32C of all this (4 bytes, big endian).
//
// Numbers are varints, of which cost alone has a sign.
func (b *Batch) MarshalBinary() ([]byte, error) {
	text, err := b.encode()
	if err != nil {
		return nil, fmt.Errorf("encode a batch of usage: %w", err)
	}
	return text, nil
}

func (b *Batch) encode() ([]byte, error) {
	epoch, err := hex.DecodeString(b.Epoch)
	if err == nil {
		err = b.check()
	}
	if err != nil {
		return nil, err
	}
	names, places := b.names()
	text := append([]byte{version}, epoch...)
	text = binary.AppendUvarint(text, uint64(b.Seq))
	text = binary.AppendUvarint(text, uint64(b.Span.Microseconds()))
	text = binary.AppendUvarint(text, uint64(len(names)))
	for _, name := range names {
		text = append(binary.AppendUvarint(text, uint64(len(name))), name...)
	}
	text = binary.AppendUvarint(text, uint64(len(b.Rows)))
	for i := range b.Rows {
		r := &b.Rows[i]
		for _, n := range [...]int64{
			int64(places[r.Tenant]), int64(places[r.Endpoint]), int64(places[r.Policy]),
			r.Admitted, r.Soft, r.Denied, r.ShadowDenied,
		} {
			text = binary.AppendUvarint(text, uint64(n))
		}
		text = binary.AppendVarint(text, r.Cost)
		text = binary.AppendUvarint(text, uint64(r.Remaining+1))
	}
	text = appendDenials(text, b.Denials, places)
	text = binary.AppendUvarint(text, uint64(len(b.Tiers)))
	for i := range b.Tiers {
		for _, name := range b.Tiers[i].names() {
			text = binary.AppendUvarint(text, uint64(places[name]))
		}
	}
	text = binary.BigEndian.AppendUint32(text, crc32.Checksum(text, castagnoli))
	if len(text) > MaxPayload {
		return nil, errLong
	}
	return text, nil
}

// appendDenials appends the denials of a batch.
func appendDenials(text []byte, denials []Denials, places map[string]int) []byte {
	text = binary.AppendUvarint(text, uint64(len(denials)))
	for i := range denials {
		n := &denials[i]
		text = binary.AppendUvarint(text, uint64(places[n.Tenant]))
		text = binary.AppendUvarint(text, uint64(n.Limited))
		text = binary.AppendUvarint(text, uint64(n.Penalized))
		text = binary.AppendUvarint(text, uint64(n.Unavailable))
		for _, sketch := range [...]*Sketch{&n.Users, &n.Addresses, &n.Credentials} {
			text = sketch.append(text)
		}
	}
	return text
}

var errLong = fmt.Errorf("it has more than %d bytes", MaxPayload)

// names returns the names of all rows, sorted, and the place of each.
func (b *Batch) names() (names []string, places map[string]int) {
	places = map[string]int{}
	add := func(name string) {
		if _, ok := places[name]; !ok {
			places[name] = 0
			names = append(names, name)
		}
	}
	for i := range b.Rows {
		add(b.Rows[i].Tenant)
		add(b.Rows[i].Endpoint)
		add(b.Rows[i].Policy)
	}
	for i := range b.Denials {
		add(b.Denials[i].Tenant)
	}
	for i := range b.Tiers {
		for _, name := range b.Tiers[i].names() {
			add(name)
		}
	}
	slices.Sort(names)
	for i, name := range names {
		places[name] = i
	}
	return names, places
}

// check returns why b is no batch.
func (b *Batch) check() error {
	if len(b.Epoch) != 2*epochBytes || strings.ToLower(b.Epoch) != b.Epoch {
		return fmt.Errorf("the epoch %q has not %d lower-case hexadecimal digits", b.Epoch, 2*epochBytes)
	}
	switch {
	case b.Seq < 1:
		return fmt.Errorf("seq is %d: it counts from 1", b.Seq)
	case b.Span < 0 || b.Span > maxSpan || b.Span%time.Microsecond != 0:
		return fmt.Errorf("it spans %v: that must be whole microseconds, at most %v", b.Span, maxSpan)
	case len(b.Rows) > MaxRows:
		return fmt.Errorf("it has %d rows, more than %d", len(b.Rows), MaxRows)
	case len(b.Denials) > MaxDenials:
		return fmt.Errorf("it has the denials of %d tenants, more than %d", len(b.Denials), MaxDenials)
	case len(b.Tiers) > MaxTiers:
		return fmt.Errorf("it has %d tiers, more than %d", len(b.Tiers), MaxTiers)
	}
	for i := range b.Rows {
		r := &b.Rows[i]
		switch {
		case !r.valid():
			return fmt.Errorf("a number of row %d is out of bounds", i)
		case !validName(r.Tenant) || !validName(r.Endpoint) || !validName(r.Policy):
			return fmt.Errorf("a name of row %d is no UTF-8, has a NUL or more than %d bytes", i, MaxName)
		case i > 0 && b.Rows[i-1].compare(r.Key) >= 0:
			return fmt.Errorf("row %d does not follow the one before it in the order of keys", i)
		}
	}
	for i := range b.Denials {
		n := &b.Denials[i]
		switch {
		case !n.valid() || !validName(n.Tenant):
			return fmt.Errorf("the denials %d have a number or a name that is out of bounds", i)
		case i > 0 && b.Denials[i-1].Tenant >= n.Tenant:
			return fmt.Errorf("the denials %d do not follow those before them in the order of tenants", i)
		}
	}
	return b.checkTiers()
}

// checkTiers returns why the tiers cannot be in a batch.
func (b *Batch) checkTiers() error {
	seen := map[Tier]bool{}
	for i := range b.Tiers {
		t := &b.Tiers[i]
		for _, name := range t.names() {
			if !validName(name) {
				return fmt.Errorf("a name of tier %d is no UTF-8, has a NUL or more than %d bytes", i, MaxName)
			}
		}
		switch {
		case t.Tenant == "" || t.Tier == "":
			return fmt.Errorf("tier %d has no tenant or no name", i)
		case i > 0 && b.Tiers[i-1].Tenant > t.Tenant:
			return fmt.Errorf("tier %d does not follow the one before it in the order of tenants", i)
		case seen[*t]:
			return fmt.Errorf("tier %d is repeated", i)
		}
		seen[*t] = true
	}
	return nil
}

// validName reports whether a name can be in a batch: Postgres stores no other text.
func validName(name string) bool {
	return len(name) <= MaxName && utf8.ValidString(name) && strings.IndexByte(name, 0) < 0
}

// UnmarshalBinary implements encoding.BinaryUnmarshaler. It returns an error for anything that MarshalBinary does not
// write.
func (b *Batch) UnmarshalBinary(text []byte) error {
	var again []byte
	read, err := decodeBatch(text)
	if err == nil {
		again, err = read.encode()
	}
	if err == nil && !bytes.Equal(again, text) {
		err = errForm
	}
	if err != nil {
		return fmt.Errorf("decode a batch of usage: %w", err)
	}
	*b = *read
	return nil
}

var (
	errShort = errors.New("it is incomplete")
	errForm  = errors.New("it is not in the form of a batch")
)

func decodeBatch(text []byte) (*Batch, error) {
	const sumBytes = 4
	switch {
	case len(text) > MaxPayload:
		return nil, errLong
	case len(text) < 1+epochBytes+sumBytes:
		return nil, errShort
	case text[0] != version:
		return nil, fmt.Errorf("it has version %d, want %d", text[0], version)
	}
	body, end := text[:len(text)-sumBytes], text[len(text)-sumBytes:]
	if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(end) {
		return nil, errors.New("its checksum does not match: it was damaged")
	}
	r := reader{text: body[1+epochBytes:]}
	b := &Batch{Epoch: hex.EncodeToString(body[1 : 1+epochBytes])}
	b.Seq = r.number(1 << 62)
	b.Span = time.Duration(r.number(maxSpan.Microseconds())) * time.Microsecond
	names := r.names()
	for n := r.number(MaxRows); n > 0 && r.err == nil; n-- {
		b.Rows = append(b.Rows, r.row(names))
	}
	r.allDenials(b, names)
	for n := r.number(MaxTiers); n > 0 && r.err == nil; n-- {
		b.Tiers = append(b.Tiers, Tier{r.name(names), r.name(names), r.name(names), r.name(names)})
	}
	return b, r.err
}

// reader reads the parts of a batch, whose form UnmarshalBinary checks. After an error all parts are zero values.
type reader struct {
	text []byte
	err  error
}

// take moves on by n bytes.
func (r *reader) take(n int) []byte {
	if r.err == nil && (n <= 0 || n > len(r.text)) {
		r.err = errShort
	}
	if r.err != nil {
		return nil
	}
	part := r.text[:n]
	r.text = r.text[n:]
	return part
}

// number reads a number from 0 to a maximum.
func (r *reader) number(most int64) int64 {
	v, n := binary.Uvarint(r.text)
	if r.take(n); r.err == nil && v > uint64(most) {
		r.err = fmt.Errorf("a number is %d, more than %d", v, most)
	}
	if r.err != nil {
		return 0
	}
	return int64(v)
}

// signed reads a number with a sign.
func (r *reader) signed() int64 {
	v, n := binary.Varint(r.text)
	if r.take(n); r.err != nil {
		return 0
	}
	return v
}

// names reads the list of names.
func (r *reader) names() (names []string) {
	for range r.number(maxPlaces) {
		name := ""
		if n := int(r.number(MaxName)); n > 0 {
			name = string(r.take(n))
		}
		if r.err != nil {
			return nil
		}
		names = append(names, name)
	}
	return names
}

// name reads the place of a name.
func (r *reader) name(names []string) string {
	i := r.number(maxPlaces)
	if r.err == nil && i >= int64(len(names)) {
		r.err = errForm
	}
	if r.err != nil {
		return ""
	}
	return names[i]
}

func (r *reader) row(names []string) Row {
	return Row{
		Key{Tenant: r.name(names), Endpoint: r.name(names), Policy: r.name(names)},
		Counts{
			Admitted: r.number(maxCount), Soft: r.number(maxCount),
			Denied: r.number(maxCount), ShadowDenied: r.number(maxCount),
			Cost: r.signed(), Remaining: r.number(maxCount+1) - 1,
		},
	}
}
