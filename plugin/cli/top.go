package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
)

const (
	// defaultNode is where a node of this machine serves its metrics by default.
	defaultNode  = "127.0.0.1:9542"
	defaultEvery = 2 * time.Second
	leastEvery   = 100 * time.Millisecond // more often than that, reading would be a load of its own
	defaultRows  = 20

	// A node that does not answer must not hold up the others for long, nor be given up for one slow answer.
	leastTimeout = time.Second
	mostTimeout  = 10 * time.Second
)

var topCommand = &command{
	words: "top", brief: "watch the busiest tenants, denials, tenants near a limit, and node health",
	about: `It polls the metrics of the nodes and shows rates, so the first rates appear after the second poll. Tenants
without a label of their own are combined as other, requests without a tenant as (none). NEAREST LIMIT is the highest
usage that any node reports. Press Ctrl-C to stop.

  ratelimit top --node edge-1:9542 --node edge-2:9542 --sort near

-o json and -o yaml write one document per refresh, without values that are not available yet. With --once, the exit
code is 1 if no node answers.`,
	define: func(c *call) action {
		m := &monitor{wait: pause}
		c.topFlags(m)
		c.outputFlag()
		return func(ctx context.Context) error {
			m.live = c.format == formatTable && !m.once && c.stdout.isTerminal()
			m.now, m.show = c.now, c.topPrinter(m.live)
			return m.run(ctx)
		}
	},
}

// topFlags defines what is watched, and how it is shown.
func (c *call) topFlags(m *monitor) {
	every := spanFlag{defaultEvery}
	m.rows, m.order = defaultRows, byRequests
	c.flags.Func(
		"node",
		"the `host:port` of a node's -metrics-listen; repeat the flag for several nodes (default "+defaultNode+")",
		func(text string) error {
			if err := checkNode(text); err != nil {
				return err
			}
			if slices.ContainsFunc(m.nodes, func(n *watched) bool { return n.address == text }) {
				return errors.New("appears twice: its requests would be counted twice")
			}
			m.nodes = append(m.nodes, &watched{address: text})
			return nil
		},
	)
	c.flags.Func("every", "poll at this `interval` (default "+defaultEvery.String()+")", every.Set)
	c.flags.BoolVar(&m.once, "once", false, "exit after the first refresh")
	c.flags.Func(
		"sort",
		"sort tenants by this `key`, highest first: requests, denied or near (default requests)",
		func(text string) error {
			if !slices.Contains([]string{byRequests, byDenied, byNear}, text) {
				return errors.New("must be requests, denied or near")
			}
			m.order = text
			return nil
		},
	)
	c.flags.Func(
		"rows",
		fmt.Sprintf("show at most this `number` of tenants and of policies (default %d)", defaultRows),
		func(text string) error {
			return process.ParseInt(text, 1, &m.rows)
		},
	)
	c.check(func() error {
		if every.length < leastEvery {
			return wrong("--every must be at least %s", leastEvery)
		}
		if len(m.nodes) == 0 {
			m.nodes = []*watched{{address: defaultNode}}
		}
		m.every = every.length
		m.timeout = min(max(m.every, leastTimeout), mostTimeout)
		return nil
	})
}

// checkNode returns an error for an address whose URL would reach another host, or none.
func checkNode(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	at, errURL := url.Parse(metricsURL(address))
	if err != nil || errURL != nil || host == "" || at.Host != address {
		return errors.New("must be host:port, such as " + defaultNode)
	}
	return nil
}

// monitor reads nodes again and again.
type monitor struct {
	nodes   []*watched
	every   time.Duration // between two readings
	timeout time.Duration // of a node's answer
	once    bool
	live    bool   // a terminal is watched: what is known before there are rates is shown, and written over
	order   string // of tenants
	rows    int    // of tenants and of policies, at most

	now  func() time.Time
	wait func(context.Context, time.Duration) error
	show func(*topView) error
}

// run shows what nodes do until ctx ends, which is no error, or once.
func (m *monitor) run(ctx context.Context) error {
	client := newScraper()
	defer client.CloseIdleConnections()
	for first := true; ; first = false {
		at := m.read(ctx, client)
		if ctx.Err() != nil {
			return m.interrupted() // a poll was cut short, so nodes may be missing
		}
		if !first || m.live {
			view := newTopView(at, m.nodes, m.order, m.rows)
			if err := m.show(view); err != nil {
				return err
			}
			if m.once && view.answering() == 0 {
				return exitStatus(exitFailed)
			}
			if m.once {
				return nil
			}
		}
		if m.wait(ctx, m.every) != nil {
			return m.interrupted()
		}
	}
}

// interrupted returns the error of a run that a signal has ended: with --once the refresh is missing.
func (m *monitor) interrupted() error {
	if m.once {
		return errors.New("interrupted before the first result")
	}
	return nil
}

// read reads all nodes at the same time, and is when that was.
func (m *monitor) read(ctx context.Context, client *http.Client) time.Time {
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	at := m.now()
	var all sync.WaitGroup
	for _, n := range m.nodes {
		all.Go(func() { n.read(ctx, client, at) })
	}
	all.Wait()
	return at
}

// pause waits for a time, or returns the error of ctx.
func pause(ctx context.Context, length time.Duration) error {
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// topPrinter returns how refreshes are shown: as documents, over one another, or one below the other.
func (c *call) topPrinter(over bool) func(*topView) error {
	switch c.format {
	case formatJSON:
		return func(v *topView) error { return writeJSON(c.stdout, v) }
	case formatYAML:
		return func(v *topView) error { return writeYAMLAfter("---\n", c.stdout, v) }
	}
	return tablePrinter(c.stdout, over)
}

// overwrite moves a terminal's cursor home and clears all behind it.
const overwrite = "\x1b[H\x1b[J"

// tablePrinter writes each refresh at once, so that a terminal never shows half of one.
func tablePrinter(to screen, over bool) func(*topView) error {
	if over {
		to.before = overwrite
		return func(v *topView) error { return writeTable(to, topText(v)) }
	}
	gap := ""
	return func(v *topView) error {
		text := gap + topText(v)
		gap = "\n"
		return writeTable(to, text)
	}
}

func writeTable(to io.Writer, text string) error {
	if _, err := io.WriteString(to, text); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return nil
}
