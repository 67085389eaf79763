package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// answerWithin bounds the wait for an answer.
const answerWithin = 10 * time.Second

// client sends the same request again and again.
type client struct {
	url, key string
	status   int // of every answer
	header   string
}

// awaitReady sends requests until each of some in a row is answered as the route must answer: Kong's workers learn of a
// new route one after the other, and a limit that denies has to be used up. Each has a connection of its own, so that
// any worker may get it.
func (c *client) awaitReady(ctx context.Context, within time.Duration) error {
	const inARow, pause = 20, 50 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	via := &http.Client{Timeout: answerWithin, Transport: &http.Transport{DisableKeepAlives: true}}
	var fault error // of the last try that was not ended by the time limit
	for good := 0; good < inARow; {
		err := c.send(ctx, via)
		if good++; err == nil {
			continue
		}
		good = 0
		if fault == nil || ctx.Err() == nil {
			fault = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the route is not ready: %w", fault)
		case <-time.After(pause):
		}
	}
	return nil
}

// send sends one request and reads the answer. Another answer than the route's is an error.
func (c *client) send(ctx context.Context, via *http.Client) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("apikey", c.key)
	answer, err := via.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != c.status {
		return fmt.Errorf("status %d, want %d", answer.StatusCode, c.status)
	}
	if c.header != "" && answer.Header.Get(c.header) == "" {
		return fmt.Errorf("no header %s: the plugin does not limit", c.header)
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return err
}

// run sends requests over some connections for a while, on each as soon as the last is answered, and returns how long
// each took, in order. Each connection sends at least one.
func (c *client) run(ctx context.Context, connections int, lasts time.Duration) ([]time.Duration, error) {
	transport := &http.Transport{MaxIdleConnsPerHost: connections, DisableCompression: true}
	defer transport.CloseIdleConnections()
	via := &http.Client{Timeout: answerWithin, Transport: transport}
	took := make([][]time.Duration, connections)
	load, ctx := errgroup.WithContext(ctx)
	end := time.Now().Add(lasts)
	for i := range connections {
		load.Go(func() error {
			for begun := time.Now(); len(took[i]) == 0 || begun.Before(end); {
				if err := c.send(ctx, via); err != nil {
					return err
				}
				now := time.Now()
				took[i] = append(took[i], now.Sub(begun))
				begun = now
			}
			return nil
		})
	}
	err := load.Wait()
	all := slices.Concat(took...)
	slices.Sort(all)
	return all, err
}
