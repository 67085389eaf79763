package policysync

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// crowd returns the rows of so many tenants, ten of each.
func crowd(tenants int) policy.Rows {
	rows := policy.Rows{Version: 42, Tiers: []policy.TierRow{{Name: "gold"}}}
	for n := range tenants {
		tenant, cost := fmt.Sprintf("tenant-%06d", n), int64(n%3)
		rows.Tenants = append(rows.Tenants, schema.Tenant{ID: tenant, Tier: "gold", TimeZone: "Europe/Vienna"})
		for i := range 4 {
			row := policy.PolicyRow{ID: int64(n*10 + i), Policy: schema.Policy{
				Namespace: "default", Tenant: tenant,
				Limit: schema.Limit{
					Name: fmt.Sprint("limit-", i), Scope: "tenant", Limit: int64(1000 + n), WindowSize: 3600,
					Algorithm: "token_bucket", Burst: 77,
				},
			}}
			if i == 3 {
				row.Limit.Cost, row.Limit.Mode, row.Limit.FailMode, row.Limit.Accuracy = &cost, "shadow", "closed", "exact"
				row.PublicNote = "agreed for the launch"
			}
			rows.Policies = append(rows.Policies, row)
		}
		var ends time.Time // the first tenant's never do
		if n > 0 {
			ends = time.Unix(int64(n), 0).UTC()
		}
		for i := range 5 {
			rows.Overrides = append(rows.Overrides, policy.Override{ID: int64(n*10 + i), Override: schema.Override{
				Kind: policy.Multiplier, Tenant: tenant, User: fmt.Sprint("user-", i), Factor: 1500,
				Reason: "contract 7", Author: "ann", PublicNote: "until we know more", ExpiresAt: ends,
				Permanent: n == 0, Source: policy.Commercial,
			}})
		}
	}
	return rows
}

func built(t testing.TB, rows policy.Rows) *policy.Snapshot {
	t.Helper()
	snapshot, faults := policy.NewSnapshot(rows, nil)
	if len(faults) > 0 {
		t.Fatal(faults[0])
	}
	return snapshot
}

func encoded(t testing.TB, snapshot *policy.Snapshot) []byte {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, encode(&out, snapshot, time.UnixMicro(1_700_000_000_000_001)))
	return out.Bytes()
}

func TestASavedSnapshotIsReadUnchanged(t *testing.T) {
	snapshot := built(t, crowd(50))
	saved, err := decode(bytes.NewReader(encoded(t, snapshot)), 501)
	require.NoError(t, err)
	if saved.Confirmed.UnixMicro() != 1_700_000_000_000_001 || saved.Rows.Version != 42 {
		t.Errorf("the file has version %d of %v", saved.Rows.Version, saved.Confirmed)
	}
	again := built(t, saved.Rows)
	if !reflect.DeepEqual(again.Tiers(), snapshot.Tiers()) || !same(again.Tenants(), snapshot.Tenants()) ||
		!same(again.Policies(), snapshot.Policies()) || !same(again.Overrides(), snapshot.Overrides()) {
		t.Error("the rows differ")
	}
}

// same reports whether two sequences have the same items, in any order.
func same[T any](a, b func(func(T) bool)) bool {
	text := func(items func(func(T) bool)) []string {
		var all []string
		for item := range items {
			if r, ok := any(item).(policy.PolicyRow); ok && r.Limit.Cost != nil {
				all = append(all, fmt.Sprint("cost ", *r.Limit.Cost, " of ", r.ID))
				r.Limit.Cost = nil
				all = append(all, fmt.Sprintf("%+v", r))
				continue
			}
			all = append(all, fmt.Sprintf("%+v", item))
		}
		slices.Sort(all)
		return all
	}
	return slices.Equal(text(a), text(b))
}

var update = flag.Bool("update", false, "rewrite the golden files")

// A program takes the rows of a file by their place, so a file of other fields has to have another format.
func TestTheFormatChangesWithTheFormOfTheFile(t *testing.T) {
	rows, cost := crowd(1), int64(3)
	rows.Costs = []policy.CostRow{{ID: 9, Cost: schema.Cost{Endpoint: "GET /a", Cost: &cost}}}
	want, path := built(t, rows), fmt.Sprint("testdata/saved-format-", format)
	if *update {
		require.NoError(t, writeFile(path, want, time.UnixMicro(1)))
	}
	saved, err := ReadFile(path, 0)
	if err != nil {
		t.Fatalf("%v: count the format up, and write the file with -update", err)
	}
	if again := built(t, saved.Rows); saved.Rows.Version != 42 || !same(again.Tenants(), want.Tenants()) ||
		!same(again.Policies(), want.Policies()) || !same(again.Overrides(), want.Overrides()) ||
		*again.Costs()[0].Cost.Cost != cost {
		t.Errorf("%s is read as %+v", path, saved.Rows)
	}
}

func TestAFileOfAnotherFormatIsAnError(t *testing.T) {
	whole := encoded(t, built(t, crowd(1)))
	for _, version := range []uint32{0, format + 1} {
		binary.LittleEndian.PutUint32(whole[len(magic):], version)
		want := fmt.Sprintf("it has format %d; this program reads format %d", version, format)
		if _, err := decode(bytes.NewReader(whole), 100); err == nil || err.Error() != want {
			t.Errorf("format %d: %v, want %s", version, err, want)
		}
	}
}

func TestCodecReadsWhatItWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var row policy.PolicyRow
		var over policy.Override
		draw(t, reflect.ValueOf(&row).Elem())
		draw(t, reflect.ValueOf(&over).Elem())
		over.Permanent = over.ExpiresAt.IsZero()
		out := codec{}
		out.policy(&row)
		out.override(&over)
		in := codec{reading: true, buf: out.buf, texts: internedTexts{}}
		var rowAgain policy.PolicyRow
		var overAgain policy.Override
		in.policy(&rowAgain)
		in.override(&overAgain)
		require.NoError(t, in.finish())
		if !reflect.DeepEqual(row, rowAgain) || !reflect.DeepEqual(over, overAgain) {
			t.Fatalf("%+v %+v is read as %+v %+v", row, over, rowAgain, overAgain)
		}
	})
}

// draw fills every field of a struct, so the test fails for a field that the codec omits.
func draw(t *rapid.T, v reflect.Value) {
	if at, ok := v.Addr().Interface().(*time.Time); ok {
		if micros := rapid.Int64().Draw(t, "instant"); micros != 0 {
			*at = time.UnixMicro(micros).UTC()
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			draw(t, v.Field(i))
		}
	case reflect.Slice:
		if n := rapid.IntRange(0, 3).Draw(t, "elements"); n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
		}
		for i := range v.Len() {
			draw(t, v.Index(i))
		}
	case reflect.Map:
		if rapid.Bool().Draw(t, "given") {
			v.Set(reflect.ValueOf(rapid.MapOfN(rapid.String(), rapid.Int64(), 1, 3).Draw(t, "entries")))
		}
	case reflect.String:
		v.SetString(rapid.String().Draw(t, "text"))
	case reflect.Int64:
		v.SetInt(rapid.Int64().Draw(t, "number"))
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "boolean"))
	case reflect.Pointer:
		if rapid.Bool().Draw(t, "given") {
			v.Set(reflect.New(v.Type().Elem()))
			draw(t, v.Elem())
		}
	default:
		t.Fatalf("cannot draw a %v", v.Type())
	}
}

// The short form flips one bit of nearly every byte, each time another one than in the byte before.
func TestSoakEveryCutAndEveryFlippedBitIsAnError(t *testing.T) {
	whole := encoded(t, built(t, crowd(1)))
	for length := range whole {
		if _, err := decode(bytes.NewReader(whole[:length]), 100); !errors.Is(err, errShort) {
			t.Fatalf("cut to %d of %d bytes: %v, want %v", length, len(whole), err, errShort)
		}
	}
	for bit := 0; bit < len(whole)*8; bit += soak.Count(9, 1) {
		flipped := slices.Clone(whole)
		flipped[bit/8] ^= 1 << (bit % 8)
		if _, err := decode(bytes.NewReader(flipped), 100); err == nil {
			t.Fatalf("bit %d is flipped, and there is no error", bit)
		}
	}
	if _, err := decode(io.MultiReader(bytes.NewReader(whole), bytes.NewReader([]byte{0})), 100); err == nil {
		t.Error("a byte follows the end, and there is no error")
	}
}

// FuzzDecode reads files of arbitrary records with valid checksums.
func FuzzDecode(f *testing.F) {
	whole := encoded(f, built(f, crowd(1)))
	f.Add(whole[fileHeader:len(whole)-4], uint8(11))
	f.Add([]byte{recordEnd, 0}, uint8(0))
	f.Add([]byte{recordTier, 0x80, 0x80, 0x08}, uint8(1))
	f.Fuzz(func(t *testing.T, records []byte, rows uint8) {
		file := append([]byte(magic), byte(format), 0, 0, 0)
		file = append(file, make([]byte, 16)...)
		file = binary.LittleEndian.AppendUint64(file, uint64(rows))
		file = binary.LittleEndian.AppendUint32(file, crc32.Checksum(file, castagnoli))
		file = append(file, records...)
		file = binary.LittleEndian.AppendUint32(file, crc32.Checksum(file, castagnoli))
		saved, err := decode(bytes.NewReader(file), 200)
		if err != nil {
			return
		}
		if n := len(saved.Rows.Tiers) + len(saved.Rows.Tenants) + len(saved.Rows.Policies) +
			len(saved.Rows.Overrides); n != int(rows) {
			t.Errorf("%d rows are read, the header says %d", n, rows)
		}
		policy.NewSnapshot(saved.Rows, nil)
	})
}
