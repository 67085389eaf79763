package kongtest

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Serve runs serve on a listener until the test ends. stop ends it before, and returns what serve returned.
func Serve(t testing.TB, listener net.Listener, serve func(context.Context, net.Listener) error) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- serve(ctx, listener) }()
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-served:
			return err
		case <-time.After(frameTimeout):
			return context.DeadlineExceeded
		}
	})
	t.Cleanup(func() { require.NoError(t, stop(), "Serve") })
	return stop
}
