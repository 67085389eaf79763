package leaktest

import (
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(m) }

func TestOnlyAGoroutineThatStaysIsALeak(t *testing.T) {
	t.Run("one that ends", func(t *testing.T) {
		go time.Sleep(time.Second)
		if err := find(patience); err != nil {
			t.Error(err)
		}
	})
	t.Run("one that stays", func(t *testing.T) {
		end := make(chan struct{})
		defer close(end)
		go func() { <-end }()
		if err := find(0); err == nil || !strings.Contains(err.Error(), "leaktest_test.go") {
			t.Errorf("got %v, want an error that shows the goroutine of this test", err)
		}
	})
}
