package drain

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestWaitStopsWorkAtTheLimitAndLeavesItAfterTheGrace(t *testing.T) {
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
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() {
					defer close(done)
					select {
					case <-time.After(test.work):
					case <-ctx.Done():
						<-time.After(test.reaction)
					}
				}()
				began := time.Now()
				Wait(done, time.Second, stop)
				if took := time.Since(began); took != test.took {
					t.Errorf("it took %v, want %v", took, test.took)
				}
				if stopped := ctx.Err() != nil; stopped != test.stopped {
					t.Errorf("stopped: %v", stopped)
				}
				stop()
				<-done
			})
		})
	}
}
