package redis

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

// A later form of buckets is written while all nodes that live read it, and not a beat longer.
func TestALaterFormIsWrittenOnlyWhileEveryLiveNodeReadsIt(t *testing.T) {
	client := redistest.Single(t).Client(t)
	flush(t, client)
	const later = format + 1
	ours, old := newStore("ours", &direct{client, false}, takeScript, quiet),
		newStore("old", &direct{client, false}, takeScript, quiet)
	ours.reads = later
	if got := ours.formats.writable("a", later); got != oldestFormat {
		t.Errorf("before any beat version %d is written", got)
	}
	for _, step := range []struct {
		does string
		do   func() error
		want int
	}{
		{"it is alone", func() error { return nil }, later},
		{
			"one comes that reads less",
			func() error { _, err := old.Beat(t.Context(), "a", "old", time.Hour); return err },
			format,
		},
		{"that one reads more, under another name", func() error {
			old.reads = later
			if _, err := old.Beat(t.Context(), "a", "new", time.Hour); err != nil {
				return err
			}
			old.reads = format
			return old.Leave(t.Context(), "a", "old")
		}, later},
		{"one says nothing of what it reads", func() error {
			return client.ZAdd(t.Context(), "rl:a:{n}",
				redis.Z{Score: float64(time.Now().Add(time.Minute).UnixMilli()), Member: "silent"}).Err()
		}, oldestFormat},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if _, err := ours.Beat(t.Context(), "a", "ours", time.Hour); err != nil {
			t.Fatal(err)
		}
		if got := ours.formats.writable("a", later); got != step.want {
			t.Errorf("when %s version %d is written, want %d", step.does, got, step.want)
		}
		if got := ours.formats.writable("b", later); got != oldestFormat {
			t.Errorf("version %d is written to a namespace of which nothing is known", got)
		}
	}
}
