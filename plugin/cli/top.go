package cli

import (
	"context"
	"errors"
	"math"
	"net/http"
	"net/url"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const (
	usageTopPath  = "/v1/ratelimit/usage/top"
	nearLimitPath = "/v1/ratelimit/near-limit"

	defaultEvery = 5 * time.Second
	leastEvery   = time.Second // more often than that, reading would be a load of its own
)

var topCommand = &command{
	words: "top", brief: "watch the busiest tenants, limits nearly used, denials and nodes",
	about: `It reads the REST API again and again, and shows what nodes have reported of the last minutes, without the
last seconds. The time is extended to whole minutes, hours or days, as by ratelimit usage top. Limits nearly used are
compared with a plugin config: that of the server, or of --config with the rows that the database has at the start.
Press Ctrl-C to stop.

  ratelimit top --config kong.yml --by denied
  ratelimit top --server https://limits.example.com --token-file token --last 1h

-o json and -o yaml write one document per refresh. An error of the REST API ends it.`,
	define: func(c *call) action {
		m := &monitor{call: c, query: c.queryFlags(api.UsageTopQuery{}, "from", "to", "last", "policy")}
		m.query.Set("limit", "20")
		m.query.Set("last", "5m")
		m.every = defaultEvery
		c.flags.Func("every", "poll at this `interval` (default "+defaultEvery.String()+")",
			reads(parseSpan, &m.every))
		c.flags.BoolVar(&m.once, "once", false, "exit after the first refresh")
		c.flags.Func("last", "show this `duration` until now, at most 24h (default 5m)", sets(m.query, "last"))
		c.flags.Lookup("limit").Usage = "the maximum number of tenants, limits and denials (default 20)"
		m.config = c.configFlag()
		c.flags.Lookup("plugin-route").Usage = routeUsage
		c.change.within = rows.LiveWithin
		c.wrongIf(func() bool { return m.every < leastEvery }, "--every must be at least %s", leastEvery)
		c.configure = func(ctx context.Context, o *api.Options) error {
			if m.config.file == "" {
				return nil
			}
			return c.configurePlan(ctx, m.config, o)
		}
		return c.asks(m.run)
	},
}

// monitor shows what is busy, again and again.
type monitor struct {
	*call
	config *configFlags
	query  url.Values // of the tenants
	every  time.Duration
	once   bool
}

// run refreshes until ctx ends, which is no error, or once.
func (m *monitor) run(ctx context.Context, rest *answers.Client) error {
	if m.format == formatTable && !m.once && m.stdout.isTerminal() {
		m.stdout.before = overwrite
	}
	tick := time.NewTicker(m.every)
	defer tick.Stop()
	for n := 0; ; n++ {
		view, err := m.read(ctx, rest)
		switch {
		case ctx.Err() != nil && m.once:
			return errors.New("interrupted before the first result")
		case ctx.Err() != nil:
			return nil
		case err == nil:
			err = m.show(view, n)
		}
		if err != nil || m.once {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// overwrite moves a terminal's cursor home and clears all behind it.
const overwrite = "\x1b[H\x1b[J"

// show shows a refresh over the one before, or below it.
func (m *monitor) show(v *topView, n int) error {
	if m.format == formatYAML {
		if err := writeText(m.stdout, "---\n", nil); err != nil {
			return err
		}
	}
	return m.print(v, func(out *page) {
		if n > 0 && m.stdout.before == "" {
			out.gap()
		}
		out.show(v)
	})
}

type topView struct {
	At      time.Time   `json:"at"`
	From    time.Time   `json:"from"`
	Tenants []topTenant `json:"tenants"`

	NearLimits []answers.NearLimit `json:"near_limits,omitempty"`
	NearNote   string              `json:"near_limits_note,omitempty"` // why they are not known
	Denials    []answers.Denial    `json:"denials"`
	Fleet      shownFleet          `json:"fleet"`
}

type topTenant struct {
	rows.OrgRanking
	Requests        int64   `json:"requests"`
	PerSecond       float64 `json:"requests_per_second"`
	DeniedPerSecond float64 `json:"denied_per_second"`
	DeniedPercent   float64 `json:"denied_percent"` // of the requests
}

// newTopTenant returns a tenant with the rates of a time.
func newTopTenant(r rows.OrgRanking, elapsed time.Duration) topTenant {
	t := topTenant{OrgRanking: r, Requests: r.Admitted + r.Denied}
	rounded := func(n, by float64) float64 { return math.Round(10*n/by) / 10 }
	t.PerSecond = rounded(float64(t.Requests), elapsed.Seconds())
	t.DeniedPerSecond = rounded(float64(r.Denied), elapsed.Seconds())
	t.DeniedPercent = rounded(100*float64(r.Denied), max(float64(t.Requests), 1))
	return t
}

func (m *monitor) read(ctx context.Context, rest *answers.Client) (*topView, error) {
	var usage rows.UsageTop
	if err := rest.Get(ctx, usageTopPath, m.query, &usage); err != nil {
		return nil, err
	}
	v := &topView{At: m.now().UTC(), From: usage.From, Tenants: []topTenant{}}
	for _, r := range usage.Items {
		v.Tenants = append(v.Tenants, newTopTenant(r, max(v.At.Sub(v.From), time.Second)))
	}
	var denials answers.DenialList
	var fleet answers.Fleet
	recent := url.Values{"limit": m.query["limit"], "since": m.query["last"]}
	err := errors.Join(rest.Get(ctx, denialsPath, recent, &denials), rest.Get(ctx, fleetPath, m.fleetQuery(), &fleet),
		m.readNear(ctx, rest, v))
	v.Denials, v.Fleet = listed(denials.Denials), newShownFleet(fleet.Fleet)
	return v, err
}

// readNear adds the limits that are nearly used, or why they are not known.
func (m *monitor) readNear(ctx context.Context, rest *answers.Client, v *topView) error {
	if m.door.server == "" && m.config.file == "" {
		v.NearNote = "--config names the plugin's config to compare with"
		return nil
	}
	var near answers.NearLimits
	err := rest.Get(ctx, nearLimitPath, url.Values{"limit": m.query["limit"], "last": m.query["last"]}, &near)
	if p := answers.ProblemOf(err); p != nil && p.Status == http.StatusServiceUnavailable {
		v.NearNote, err = p.Detail, nil
	}
	v.NearLimits = near.Items
	return err
}
