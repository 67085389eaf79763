package await_test

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
)

// recorder is a test that fails.
type recorder struct {
	testing.TB
	text string
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(format string, a ...any) {
	r.text = fmt.Sprintf(format, a...)
	runtime.Goexit()
}

func TestAConditionIsAwaitedUntilItHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		await.That(t, "it holds", func() bool { return time.Since(start) > time.Minute })
		if waited := time.Since(start); waited > time.Minute+time.Second {
			t.Errorf("waited for %v, want a minute", waited)
		}
	})
}

func TestAConditionThatNeverHoldsFailsTheTestWithTheLastError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, tries := &recorder{TB: t}, 0
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			await.NoError(r, "Redis answers", func() error {
				tries++
				return errors.New("no route")
			})
		}()
		<-ended
		if want := fmt.Sprintf("Redis answers: not within %v: no route", await.Longest); r.text != want || tries < 100 {
			t.Errorf("the test fails with %q after %d tries, want %q", r.text, tries, want)
		}
	})
}
