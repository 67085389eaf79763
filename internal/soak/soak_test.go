package soak_test

import (
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
)

func TestTheEnvironmentChoosesTheLongForm(t *testing.T) {
	for text, want := range map[string]struct {
		lasts time.Duration
		count int
	}{"": {time.Second, 10}, "10m": {10 * time.Minute, 1000}} {
		t.Setenv("SOAK", text)
		if got := soak.For(t, time.Second); got != want.lasts {
			t.Errorf("SOAK=%s: a run lasts %s, want %s", text, got, want.lasts)
		}
		if got := soak.Count(10, 1000); got != want.count {
			t.Errorf("SOAK=%s: %d steps, want %d", text, got, want.count)
		}
	}
	t.Setenv("SEED", "7")
	if got := soak.Seed(t); got != 7 {
		t.Errorf("SEED=7: the seed is %d", got)
	}
}
