package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// turn is what one turn of a route measured.
type turn struct {
	Route     string  `json:"route"`
	Round     int     `json:"round"`
	Requests  int     `json:"requests"`
	PerSecond float64 `json:"requests_per_second"`
	P50       float64 `json:"p50_ms"`
	P99       float64 `json:"p99_ms"`
	// CPU is the time of each group of processes per request, in microseconds.
	CPU map[string]float64 `json:"cpu_us_per_request"`
}

// measure runs all rounds and prints the table. The order of the routes turns by one from round to round.
func (b *bench) measure(ctx context.Context, s *settings, stdout, stderr io.Writer) error {
	clients := make([]*client, len(b.routes))
	for i := range b.routes {
		c, err := newClient(s.proxy, b.key, &b.routes[i])
		if err == nil {
			err = c.awaitReady(ctx, s.ready)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", b.routes[i].name, err)
		}
		clients[i] = c
	}
	turns := make([][]turn, len(b.routes))
	for round := range s.rounds {
		fmt.Fprintf(stderr, "round %d of %d\n", round+1, s.rounds)
		for n := range b.routes {
			i := (n + round) % len(b.routes)
			t, err := s.turnOf(ctx, clients[i])
			if err != nil {
				return fmt.Errorf("%s: %w", b.routes[i].name, err)
			}
			t.Route, t.Round = b.routes[i].name, round+1
			turns[i] = append(turns[i], t)
			if s.json {
				if err := json.NewEncoder(stdout).Encode(t); err != nil {
					return err
				}
			}
		}
	}
	if s.json {
		return nil
	}
	return b.table(stdout, s, turns)
}

// turnOf measures one turn.
func (s *settings) turnOf(ctx context.Context, c *client) (t turn, err error) {
	if s.leadIn > 0 {
		if _, err := c.run(ctx, s.connections, s.leadIn); err != nil {
			return t, err
		}
	}
	before, err := s.processes.cpuSeconds()
	if err != nil {
		return t, err
	}
	begun := time.Now()
	took, err := c.run(ctx, s.connections, s.turn)
	if err != nil {
		return t, err
	}
	lasted := time.Since(begun)
	after, err := s.processes.cpuSeconds()
	if err != nil {
		return t, err
	}
	n := len(took)
	t = turn{
		Requests: n, PerSecond: float64(n) / lasted.Seconds(), CPU: map[string]float64{},
		P50: took[n/2].Seconds() * 1e3, P99: took[n*99/100].Seconds() * 1e3,
	}
	for name, seconds := range after {
		t.CPU[name] = (seconds - before[name]) / float64(n) * 1e6
	}
	return t, nil
}

// table prints the medians as a table in Markdown. Ratios are medians over the rounds of what one round measured.
func (b *bench) table(w io.Writer, s *settings, turns [][]turn) error {
	columns := []string{"route", "req/s", "of the first", "p99 ms"}
	for i := range s.processes {
		columns = append(columns, s.processes[i].name+" CPU µs")
	}
	aligned := tabwriter.NewWriter(w, 0, 1, 1, ' ', 0)
	write := func(cells []string) { fmt.Fprintf(aligned, "| %s\t|\n", strings.Join(cells, "\t| ")) }
	write(columns)
	write(slices.Concat([]string{"---"}, slices.Repeat([]string{"--:"}, len(columns)-1)))
	for i, rounds := range turns {
		ratio := make([]float64, len(rounds))
		for round := range rounds {
			ratio[round] = rounds[round].PerSecond / turns[0][round].PerSecond
		}
		cells := []string{
			b.routes[i].title,
			fmt.Sprintf("%.0f", medianOf(rounds, func(t turn) float64 { return t.PerSecond })),
			fmt.Sprintf("%.2f", median(ratio)),
			fmt.Sprintf("%.1f", medianOf(rounds, func(t turn) float64 { return t.P99 })),
		}
		for _, group := range s.processes {
			cell := "–"
			if _, found := rounds[0].CPU[group.name]; found {
				cell = fmt.Sprintf("%.1f", medianOf(rounds, func(t turn) float64 { return t.CPU[group.name] }))
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

func medianOf(turns []turn, value func(turn) float64) float64 {
	values := make([]float64, len(turns))
	for i := range turns {
		values[i] = value(turns[i])
	}
	return median(values)
}

func median[T cmp.Ordered](values []T) T {
	slices.Sort(values)
	return values[len(values)/2]
}
