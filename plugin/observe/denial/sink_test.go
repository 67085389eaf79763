package denial

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// torn is a stream that takes a few bytes, once, and fails.
type torn struct {
	text strings.Builder
	room int
}

func (w *torn) Write(text []byte) (int, error) {
	n := min(len(text), w.room)
	w.text.Write(text[:n])
	w.room = 1 << 20
	if n < len(text) {
		return n, errDiskFull
	}
	return n, nil
}

func TestALineThatWasWrittenInPartDamagesNoOther(t *testing.T) {
	batch := []Line{{Text: []byte(`{"a":1}`)}, {Text: []byte(`{"b":2}`)}}
	to := &torn{room: 11}
	w := NewWriter(to)
	assert.ErrorIs(t, w.Write(t.Context(), batch), errDiskFull)
	assert.NoError(t, w.Write(t.Context(), batch))
	const want = "{\"a\":1}\n{\"b\n{\"a\":1}\n{\"b\":2}\n"
	assert.Equal(t, want, to.text.String())
}

// partly is the error of a Write that has stored a part of its batch.
type partly struct {
	retry, rejected []int
	mayArrive       bool
}

func (*partly) Error() string                   { return "stored in part" }
func (p *partly) Left() (retry, rejected []int) { return p.retry, p.rejected }
func (p *partly) MayArrive() bool               { return p.mayArrive }

// picky is a sink that rejects the lines of one tenant, and has not stored those of another until a time.
type picky struct {
	shelf
	rejects, delays string
	until           time.Time
	mayArrive       bool // what is delayed may be stored
}

func (s *picky) Write(ctx context.Context, batch []Line) error {
	left := &partly{mayArrive: s.mayArrive}
	var stored []Line
	for i, line := range batch {
		switch {
		case line.Org == s.rejects:
			left.rejected = append(left.rejected, i)
		case line.Org == s.delays && time.Now().Before(s.until):
			left.retry = append(left.retry, i)
		default:
			stored = append(stored, line)
		}
	}
	if err := s.shelf.Write(ctx, stored); err != nil || len(left.retry)+len(left.rejected) == 0 {
		return err
	}
	return left
}

func TestASinkThatStoresAPartGetsTheOthersOnceMore(t *testing.T) {
	for name, tt := range map[string]struct {
		mayArrive bool
		want      []string // the tenants whose lines are stored
		dropped   uint64   // by the reason sink
	}{
		"they may have been stored": {true, []string{"acme", "late", "next"}, 0},
		"they were not stored":      {false, []string{"acme", "next"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				to := &picky{rejects: "bad", delays: "late", until: time.Now().Add(5 * time.Minute), mayArrive: tt.mayArrive}
				r, _, end := running(t, Options{Sinks: map[string]Sink{"picky": to}, RetryFor: 20 * time.Second})
				for _, org := range []string{"acme", "bad", "late"} {
					r.Observe(decided(org, answered{named("minute", policy.Tenant), denies}))
				}
				wait(4 * time.Minute)
				r.Observe(decided("next", answered{named("minute", policy.Tenant), denies}))
				wait(2 * time.Minute)
				end()
				var got []string
				for _, e := range to.events(t) {
					got = append(got, e.Org)
				}
				slices.Sort(got)
				s := r.Stats()[0]
				if !slices.Equal(got, tt.want) || s.Dropped[Rejected] != 1 || s.Dropped[SinkFailed] != tt.dropped {
					t.Errorf("stored %q and counted %+v, want %q", got, s, tt.want)
				}
			})
		})
	}
}
