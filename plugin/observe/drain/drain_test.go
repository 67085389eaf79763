package drain

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestTheEndTriesUntilTheLastRoundIsDoneOrTheLimitIsOver(t *testing.T) {
	for name, test := range map[string]struct {
		work, took time.Duration
		done       bool // the last round
	}{
		"finishes in time": {time.Second - 1, time.Second - 1, true},
		"is stopped":       {time.Hour, time.Second, true},
		"is never done":    {0, time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, end := context.WithCancel(t.Context())
				wake, rounds, ended := make(chan struct{}), 0, make(chan struct{})
				go func() {
					defer close(ended)
					Run(ctx, time.Minute, time.Second, wake, func(ctx context.Context, last bool) bool {
						rounds++
						if rounds == 3 { // runs while ctx ends
							select {
							case <-time.After(test.work):
							case <-ctx.Done():
							}
						}
						return test.done
					})
				}()
				time.Sleep(time.Minute)
				wake <- struct{}{}
				wake <- struct{}{}
				began := time.Now()
				end()
				<-ended
				if took := time.Since(began); took != test.took || rounds < 4 {
					t.Errorf("it took %v and %d rounds, want %v", took, rounds, test.took)
				}
			})
		})
	}
}
