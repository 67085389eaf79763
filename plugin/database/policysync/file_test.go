package policysync

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
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
				Kind: schema.KindMultiplier, Tenant: tenant, User: fmt.Sprint("user-", i), Factor: 1500,
				Reason: "contract 7", Author: "ann", PublicNote: "until we know more", ExpiresAt: ends,
				Permanent: n == 0, Source: schema.SourceCommercial,
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

// read decodes a file.
func read(whole []byte, maxRows int) (Saved, error) {
	return decode(bytes.NewReader(whole), maxRows, math.MaxInt)
}

func TestASavedSnapshotIsReadUnchanged(t *testing.T) {
	rows := crowd(50)
	for i, p := range policytest.Full(t) {
		rows.Policies[i].Policy = p
	}
	rows.Overrides[5].ExpiresAt = time.Date(9999, 1, 1, 0, 0, 0, 1000, time.UTC)
	rows.Overrides[6].Source, rows.Overrides[6].StartsAt = schema.SourceScheduled, time.UnixMicro(7).UTC()
	rows.Prices = []policy.PriceRow{{ID: 7, DatedPrice: schema.DatedPrice{
		Namespace:  "default",
		ModelPrice: schema.ModelPrice{Model: "gpt-4o*", Prompt: 2_500_001, Completion: 1_000_000_000_000},
		StartsAt:   time.UnixMicro(7).UTC(),
	}}}
	snapshot := built(t, rows)
	saved, err := read(encoded(t, snapshot), 502)
	require.NoError(t, err)
	if saved.Confirmed.UnixMicro() != 1_700_000_000_000_001 || saved.Rows.Version != 42 {
		t.Errorf("the file has version %d of %v", saved.Rows.Version, saved.Confirmed)
	}
	again := built(t, saved.Rows)
	if !reflect.DeepEqual(again.Tiers(), snapshot.Tiers()) || !same(again.Tenants(), snapshot.Tenants()) ||
		!same(again.Policies(), snapshot.Policies()) || !same(again.Overrides(), snapshot.Overrides()) ||
		!reflect.DeepEqual(again.Namespace("default").Prices, snapshot.Namespace("default").Prices) {
		t.Error("the rows differ")
	}
}

// same reports whether two sequences have the same items, in any order.
func same[T any](a, b func(func(T) bool)) bool {
	text := func(items func(func(T) bool)) []string {
		var all []string
		for item := range items {
			encoded, _ := json.Marshal(item) // a text that differs fails the comparison
			all = append(all, string(encoded))
		}
		slices.Sort(all)
		return all
	}
	return slices.Equal(text(a), text(b))
}

var update = flag.Bool("update", false, "rewrite the golden files")

// A program reads what an earlier one has saved: count the format up where it cannot.
func TestTheFormatChangesWithTheFormOfTheFile(t *testing.T) {
	rows, cost := crowd(1), int64(3)
	rows.Costs = []policy.CostRow{{ID: 9, Cost: schema.Cost{Endpoint: "GET /a", Cost: &cost}}}
	want, path := built(t, rows), fmt.Sprint("testdata/saved-format-", format)
	if *update {
		require.NoError(t, writeFile(path, want, time.UnixMicro(1)))
	}
	saved, err := ReadFile(path, 0)
	require.NoError(t, err, "count the format up, git rm this file, and write another with -update")
	if again := built(t, saved.Rows); saved.Rows.Version != 42 || !same(again.Tenants(), want.Tenants()) ||
		!same(again.Policies(), want.Policies()) || !same(again.Overrides(), want.Overrides()) ||
		*again.Costs()[0].Cost.Cost != cost {
		t.Errorf("%s is read as %+v", path, saved.Rows)
	}
}

func TestAFileOfAnotherFormatIsAnError(t *testing.T) {
	var file bytes.Buffer
	out := gzip.NewWriter(&file)
	require.NoError(t, json.NewEncoder(out).Encode(savedHeader{Format: format + 1}))
	require.NoError(t, out.Close())
	_, err := read(file.Bytes(), 100)
	require.ErrorContains(t, err, fmt.Sprintf("it has format %d; this program reads format %d", format+1, format))
}

// The short form flips one bit of nearly every byte, each time another one than in the byte before.
func TestSoakEveryCutAndEveryFlippedBitIsAnErrorOrChangesNothing(t *testing.T) {
	whole := encoded(t, built(t, crowd(1)))
	want, err := read(whole, 100)
	require.NoError(t, err)
	for length := range whole {
		_, err := read(whole[:length], 100)
		require.ErrorContains(t, err, "cut short or damaged", "cut to %d of %d bytes", length, len(whole))
	}
	for bit := 0; bit < len(whole)*8; bit += soak.Count(9, 1) {
		flipped := slices.Clone(whole)
		flipped[bit/8] ^= 1 << (bit % 8)
		if found, err := read(flipped, 100); err == nil {
			require.Equal(t, want, found, "bit %d is flipped", bit) // in the time of the header of gzip
		}
	}
	_, err = read(append(whole, 0), 100)
	assert.Error(t, err, "a byte follows the end, and there is no error")
}

func TestAFileKeepsTheOpenCandidateInFull(t *testing.T) {
	want := &policy.CandidateSet{Name: "spring", Created: 7, Percent: 5, Tenants: []string{"acme", "zen"}}
	for _, p := range policytest.Full(t) {
		want.Rows = append(want.Rows, policy.CandidateRow{Policy: p})
	}
	want.Rows = append(want.Rows, policy.CandidateRow{
		Policy: schema.Policy{Namespace: "default", Tier: "gold", Limit: schema.Limit{Name: "daily"}}, Deleted: true,
	})
	snapshot, faults := built(t, crowd(1)).WithCandidate(want)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	saved, err := read(encoded(t, snapshot), snapshot.Len()+len(snapshot.Tiers()))
	if err != nil || !reflect.DeepEqual(saved.Candidate, want) {
		t.Errorf("the file has the candidate %+v (%v), want %+v", saved.Candidate, err, want)
	}
}
