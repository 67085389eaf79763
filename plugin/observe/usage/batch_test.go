package usage

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
)

// sample returns a batch with every kind of row.
func sample() *Batch {
	return &Batch{
		Epoch: "00ff00ff00ff00ff", Seq: 7, Span: 5 * time.Second,
		Rows: []Row{
			{Key{"", "", ""}, Counts{Admitted: 3, Remaining: NoRemaining}},
			{
				Key{"acme", "GET /records", ""},
				Counts{Admitted: 100, Soft: 20, Denied: 7, ShadowDenied: 1, Remaining: NoRemaining},
			},
			{Key{"acme", "GET /records", "daily"}, Counts{Admitted: 100, Denied: 7, Cost: 300, Remaining: 0}},
			{Key{"acme", "chat", "tokens"}, Counts{Cost: -70, Remaining: 12_000_000_000}},
			{Key{"zürich, \"x\"\n=1", "chat", ""}, Counts{Admitted: 1, Remaining: NoRemaining}},
		},
	}
}

// sampleDenials returns a batch with denials: of few names, and of many.
func sampleDenials() *Batch {
	b := sample()
	few := Denials{Tenant: "acme", Limited: 7, Penalized: 3, Unavailable: 2}
	few.Users.add("ann")
	few.Addresses.add("192.0.2.1")
	many := Denials{Tenant: "beta", Limited: 9000}
	for i := range 1000 {
		many.Credentials.add(fmt.Sprint("key-", i))
	}
	b.Denials = []Denials{few, many}
	b.Tiers = []Tier{
		{"acme", "default", "pro", "header.X-Tier"},
		{"acme", "default", "free", "consumer.tag.tier"},
		{"beta", "eu", "free", "default"},
	}
	return b
}

func encoded(t testing.TB, b *Batch) []byte {
	t.Helper()
	text, err := b.MarshalBinary()
	require.NoError(t, err)
	return text
}

func TestABatchIsReadAsItWasWritten(t *testing.T) {
	for name, b := range map[string]*Batch{
		"sample": sample(), "denials": sampleDenials(), "empty": {Epoch: "0123456789abcdef", Seq: 1},
	} {
		var read Batch
		if err := read.UnmarshalBinary(encoded(t, b)); err != nil || !reflect.DeepEqual(&read, b) {
			t.Errorf("%s is read as %+v, %v", name, read, err)
		}
	}
}

// Batches wait in Postgres and in files while programs are replaced.
func TestTheFormOfABatchStays(t *testing.T) {
	checkForm(t, sample(), "batch.golden")
	checkForm(t, sampleDenials(), "batch_denials.golden")
}

func checkForm(t *testing.T, b *Batch, name string) {
	t.Helper()
	golden.Check(t, filepath.Join("testdata", name), string(encoded(t, b))) // another form needs another version
}

// The largest batch of long names and large numbers is within the bound that Postgres checks.
func TestTheLargestBatchFitsIntoAPayload(t *testing.T) {
	b := &Batch{Epoch: "0123456789abcdef", Seq: 1 << 62, Span: maxSpan}
	most := Counts{maxCount, maxCount, maxCount, maxCount, -maxCount, maxCount}
	names := 0
	for i := range MaxRows {
		tenant := fmt.Sprintf("%0*d", maxNames/MaxRows, i)
		names += len(tenant)
		b.Rows = append(b.Rows, Row{Key{Tenant: tenant}, most})
	}
	full := Denials{Limited: maxCount, Penalized: maxCount, Unavailable: maxCount}
	for i := range full.Users {
		full.Users[i], full.Addresses[i], full.Credentials[i] = 1, 1, 1
	}
	for i := range MaxDenials {
		full.Tenant = b.Rows[i].Tenant
		b.Denials = append(b.Denials, full)
	}
	if text := encoded(t, b); names != maxNames || len(text) > MaxPayload {
		t.Errorf("%d bytes with %d of names", len(text), names)
	}
}

func TestABatchThatNoReporterWritesIsNotEncoded(t *testing.T) {
	for want, change := range map[string]func(*Batch){
		"epoch":              func(b *Batch) { b.Epoch = "00FF00FF00FF00FF" },
		"hexadecimal digits": func(b *Batch) { b.Epoch = "00ff" },
		"seq is 0":           func(b *Batch) { b.Seq = 0 },
		"microseconds":       func(b *Batch) { b.Span = time.Nanosecond },
		"at most":            func(b *Batch) { b.Span = 2 * maxSpan },
		"more than 4096":     func(b *Batch) { b.Rows = make([]Row, MaxRows+1) },
		"number of row 1":    func(b *Batch) { b.Rows[1].Denied = -1 },
		"number of row 2":    func(b *Batch) { b.Rows[2].Remaining = -2 },
		"number of row 3":    func(b *Batch) { b.Rows[3].Cost = -maxCount - 1 },
		"name of row 2":      func(b *Batch) { b.Rows[2].Policy = "a\x00b" },
		"name of row 4":      func(b *Batch) { b.Rows[4].Tenant = "\xff" },
		"name of row 0":      func(b *Batch) { b.Rows[0].Endpoint = strings.Repeat("x", MaxName+1) },
		"row 3 does not":     func(b *Batch) { b.Rows[3].Key = b.Rows[2].Key },
		"more than 512":      func(b *Batch) { b.Denials = make([]Denials, MaxDenials+1) },
		"denials 1 do not":   func(b *Batch) { b.Denials[1].Tenant = b.Denials[0].Tenant },
		"denials 0 have":     func(b *Batch) { b.Denials[0].Limited = -1 },
		"denials 0 have a":   func(b *Batch) { b.Denials[0].Penalized = 8 },
		"denials 1 have":     func(b *Batch) { b.Denials[1].Users[3] = maxRank + 1 },
	} {
		b := sampleDenials()
		change(b)
		if _, err := b.MarshalBinary(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want one about %q", err, want)
		}
	}
}

// sealed returns a text with a checksum that matches.
func sealed(text []byte) []byte {
	return binary.BigEndian.AppendUint32(bytes.Clone(text), crc32.Checksum(text, castagnoli))
}

func TestADamagedBatchIsNotRead(t *testing.T) {
	good := encoded(t, sample())
	body := good[:len(good)-4]
	for want, text := range map[string][]byte{
		"incomplete":          good[:12],
		"checksum":            append(bytes.Clone(body[:len(body)-1]), good[len(body):]...),
		"version 9":           append([]byte{9}, good[1:]...),
		"not in the form of":  sealed(append(bytes.Clone(body), 0)),
		"more than 4096":      sealed(append(bytes.Clone(body[:9]), 1, 1, 0, 0xff, 0xff, 3)),
		"not in the form":     sealed(append(bytes.Clone(body[:9]), 0x81, 0, 1, 0, 0, 0, 0)), // seq 1 in two bytes
		"the form of a batch": sealed(append(bytes.Clone(body[:9]), 1, 1, 1, 1, 'a', 0, 0, 0)),
		"seq is 0":            sealed(append(bytes.Clone(body[:9]), 0, 1, 0, 0, 0, 0)),
		"more than 1048576":   make([]byte, MaxPayload+1),
		"it is incomplete":    sealed(body[:len(body)-1]),
		"a name of row 0 is":  sealed(append(bytes.Clone(body[:9]), 1, 1, 1, 1, 0xff, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)),
	} {
		b := Batch{Seq: 99}
		if err := b.UnmarshalBinary(text); err == nil || !strings.Contains(err.Error(), want) || b.Seq != 99 {
			t.Errorf("the error is %v, want one about %q, and no change", err, want)
		}
	}
}

// What can be read is what MarshalBinary writes, byte by byte.
func FuzzBatch(f *testing.F) {
	for _, b := range []*Batch{sample(), sampleDenials(), {Epoch: "0123456789abcdef", Seq: 1}} {
		text := encoded(f, b)
		f.Add(text[:len(text)-4])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var b Batch
		if b.UnmarshalBinary(sealed(body)) != nil {
			return
		}
		again := encoded(t, &b)
		assert.True(t, bytes.Equal(again, sealed(body)), "%x is written as %x", body, again)
	})
}

func TestSumsStopAtTheirBounds(t *testing.T) {
	c := noCounts
	for range 5 {
		c.Add(Counts{Admitted: 1 << 62, Cost: -1 << 63, Remaining: 9})
	}
	assert.Equal(t, (Counts{Admitted: maxCount, Cost: -maxCount, Remaining: 9}), c)
}
