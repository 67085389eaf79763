package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
)

// sample holds what one measurement of a route found.
type sample struct {
	perSecond float64
	p99       float64            // ms
	cpu       map[string]float64 // of each group of processes per request, in microseconds
}

// measure runs all rounds and prints the table. Each round begins with the next route.
func (b *bench) measure(ctx context.Context, s *settings, stdout, stderr io.Writer) error {
	clients := make([]*client, len(b.routes))
	for i := range b.routes {
		r := &b.routes[i]
		clients[i] = &client{url: s.proxy + r.path(), status: r.status(), header: headers[r.plugin]}
		if err := clients[i].awaitReady(ctx, s.ready); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	samples := make([][]sample, len(b.routes))
	for round := range s.rounds {
		fmt.Fprintf(stderr, "round %d of %d\n", round+1, s.rounds)
		for n := range b.routes {
			i := (n + round) % len(b.routes)
			m, err := s.measureOnce(ctx, clients[i])
			if err != nil {
				return fmt.Errorf("%s: %w", b.routes[i].name, err)
			}
			samples[i] = append(samples[i], m)
		}
	}
	return b.table(stdout, s, samples)
}

func (s *settings) measureOnce(ctx context.Context, c *client) (m sample, err error) {
	if _, err := c.run(ctx, s.connections, s.turn/10); err != nil {
		return m, err
	}
	before, err := s.processes.cpuSeconds()
	if err != nil {
		return m, err
	}
	begun := time.Now()
	took, err := c.run(ctx, s.connections, s.turn)
	if err != nil {
		return m, err
	}
	lasted := time.Since(begun)
	after, err := s.processes.cpuSeconds()
	if err != nil {
		return m, err
	}
	n := len(took)
	m = sample{
		perSecond: float64(n) / lasted.Seconds(), p99: took[n*99/100].Seconds() * 1e3,
		cpu: map[string]float64{},
	}
	for name := range after {
		m.cpu[name] = computed(before[name], after[name]) / float64(n) * 1e6
	}
	return m, nil
}

// table prints the medians as a table in Markdown. Ratios are medians over the rounds of what one round measured.
func (b *bench) table(w io.Writer, s *settings, samples [][]sample) error {
	columns, processes := []string{"route", "req/s", "of the first", "p99 ms"}, slices.Sorted(maps.Keys(s.processes))
	for _, name := range processes {
		columns = append(columns, name+" CPU µs")
	}
	aligned := tabwriter.NewWriter(w, 0, 1, 1, ' ', 0)
	write := func(cells []string) { fmt.Fprintf(aligned, "| %s\t|\n", strings.Join(cells, "\t| ")) }
	write(columns)
	write(slices.Concat([]string{"---"}, slices.Repeat([]string{"--:"}, len(columns)-1)))
	for i, rounds := range samples {
		ratio := make([]float64, len(rounds))
		for round := range rounds {
			ratio[round] = rounds[round].perSecond / samples[0][round].perSecond
		}
		cells := []string{
			b.routes[i].title,
			fmt.Sprintf("%.0f", medianOf(rounds, func(m sample) float64 { return m.perSecond })),
			fmt.Sprintf("%.2f", median(ratio)),
			fmt.Sprintf("%.1f", medianOf(rounds, func(m sample) float64 { return m.p99 })),
		}
		for _, name := range processes {
			cell := "–"
			if _, found := rounds[0].cpu[name]; found {
				cell = fmt.Sprintf("%.1f", medianOf(rounds, func(m sample) float64 { return m.cpu[name] }))
			}
			cells = append(cells, cell)
		}
		write(cells)
	}
	if err := aligned.Flush(); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	_, err := fmt.Fprintf(w, "\nmedians of %d rounds of %s per route, %d connections\n", s.rounds, s.turn, s.connections)
	return err
}

func medianOf(samples []sample, value func(sample) float64) float64 {
	values := make([]float64, len(samples))
	for i := range samples {
		values[i] = value(samples[i])
	}
	return median(values)
}

func median[T cmp.Ordered](values []T) T {
	slices.Sort(values)
	return values[len(values)/2]
}

const answerWithin = 10 * time.Second

// client sends the same request again and again.
type client struct {
	url    string
	status int // of every answer
	header string
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
	request.Header.Set("apikey", prefix)
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
