package usage

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
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
	b.Rows[3].Unit = "usd"
	b.Models = []ModelCalls{
		{"", "gpt-4o", 1, 2, 3, 0}, {"acme", "", 1, 0, 0, 0}, {"acme", "gpt-4o", 9, 9000, 800, 30_500},
	}
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

// Batches wait in Postgres and in files while programs are replaced: another form needs another version.
func TestTheFormOfABatchStays(t *testing.T) {
	text := unpacked(t, encoded(t, sampleDenials()))
	golden.Check(t, filepath.Join("testdata", "batch.golden"), string(text)+"\n")
}

// unpacked returns the JSON of a batch.
func unpacked(t *testing.T, payload []byte) []byte {
	t.Helper()
	reader, err := gzip.NewReader(bytes.NewReader(payload))
	require.NoError(t, err)
	text, err := io.ReadAll(reader)
	require.NoError(t, err)
	return text
}

func packed(t testing.TB, text []byte) []byte {
	t.Helper()
	var payload bytes.Buffer
	writer := gzip.NewWriter(&payload)
	_, err := writer.Write(text)
	require.NoError(t, err)
	require.NoError(t, writer.Close())
	return payload.Bytes()
}

func TestABatchThatNoReporterWritesIsNotRead(t *testing.T) {
	for want, change := range map[string]func(*Batch){
		"it spans":        func(b *Batch) { b.Span = 2 * maxSpan },
		"more than 4096":  func(b *Batch) { b.Rows = make([]Row, MaxRows+1) },
		"of row 1":        func(b *Batch) { b.Rows[1].Denied = -1 },
		"of row 2":        func(b *Batch) { b.Rows[2].Remaining = -2 },
		"of row 3":        func(b *Batch) { b.Rows[3].Cost = -maxCount - 1 },
		"of row 4":        func(b *Batch) { b.Rows[4].Unit = "eur" },
		"of model 0":      func(b *Batch) { b.Models[0].MicroUSD = -1 },
		"of model 1":      func(b *Batch) { b.Models[1].Calls = maxCount + 1 },
		"name of model 2": func(b *Batch) { b.Models[2].Model = "a\x00b" },
		"name of row 2":   func(b *Batch) { b.Rows[2].Policy = "a\x00b" },
		"name of row 0":   func(b *Batch) { b.Rows[0].Endpoint = strings.Repeat("x", MaxName+1) },
		", 512, 1024":     func(b *Batch) { b.Denials = make([]Denials, MaxDenials+1) },
		"1025 tiers":      func(b *Batch) { b.Tiers = make([]Tier, MaxTiers+1) },
		"1025 models":     func(b *Batch) { b.Models = make([]ModelCalls, MaxModels+1) },
		"denials 0":       func(b *Batch) { b.Denials[0].Limited = -1 },
		"the denials 0":   func(b *Batch) { b.Denials[0].Penalized = 8 },
		"denials 1":       func(b *Batch) { b.Denials[1].Users[3] = maxRank + 1 },
		"of tier 1":       func(b *Batch) { b.Tiers[1].Tenant = "" },
	} {
		b := sampleDenials()
		change(b)
		if err := new(Batch).UnmarshalBinary(encoded(t, b)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want one about %q", err, want)
		}
	}
}

func TestADamagedBatchIsNotRead(t *testing.T) {
	good := encoded(t, sample())
	flipped := bytes.Clone(good)
	flipped[len(flipped)-8]++
	for want, payload := range map[string][]byte{
		"unexpected EOF":               good[:len(good)-1],
		"checksum":                     flipped,
		"invalid header":               append([]byte{9}, good[1:]...),
		"version 9":                    packed(t, []byte(`{"version": 9}`)),
		"cannot unmarshal":             packed(t, []byte(`{"rows": 3}`)),
		"after top-level value":        packed(t, append(unpacked(t, good), 'x')),
		"more than 1048576 bytes":      make([]byte, MaxPayload+1),
		"it has more than 1048576":     packed(t, make([]byte, maxText+1)), // a bomb
		"cannot unmarshal number 300":  packed(t, []byte(`{"denials": [{"users": [300]}]}`)),
		"unexpected end of JSON input": packed(t, nil),
	} {
		b := Batch{Seq: 99}
		if err := b.UnmarshalBinary(payload); err == nil || !strings.Contains(err.Error(), want) || b.Seq != 99 {
			t.Errorf("the error is %v, want one about %q, and no change", err, want)
		}
	}
}

func TestSumsStopAtTheirBounds(t *testing.T) {
	c := noCounts
	for range 5 {
		c.Add(Counts{Admitted: 1 << 62, Cost: -1 << 63, Remaining: 9})
	}
	assert.Equal(t, (Counts{Admitted: maxCount, Cost: -maxCount, Remaining: 9}), c)
}
