package drain

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestRunStopsWorkAtTheLimitAndLeavesItAfterTheGrace(t *testing.T) {
	for name, test := range map[string]struct {
		work, reaction, took time.Duration // reaction: how long the work goes on after stop
		stopped              bool
	}{
		"finishes in time":  {time.Second - 1, 0, time.Second - 1, false},
		"is stopped":        {time.Hour, Grace - 1, time.Second + Grace - 1, true},
		"ignores the stop":  {time.Hour, time.Minute, time.Second + Grace, true},
		"had finished then": {0, 0, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, stopped := time.Now(), atomic.Bool{}
				Run(t.Context(), time.Second, func(context.Context) {}, func(ctx context.Context) {
					select {
					case <-time.After(test.work):
					case <-ctx.Done():
						stopped.Store(true)
						<-time.After(test.reaction)
					}
				})
				if took := time.Since(began); took != test.took {
					t.Errorf("it took %v, want %v", took, test.took)
				}
				if stopped.Load() != test.stopped {
					t.Errorf("stopped: %v", stopped.Load())
				}
				time.Sleep(test.reaction) // until the work has ended
			})
		})
	}
}
