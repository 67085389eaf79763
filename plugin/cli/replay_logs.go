package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/lab/replay"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/routeconfig"
)

// logFlags say which logs are read, and how.
type logFlags struct {
	files   []string
	options replay.LogOptions
	gateway replay.GatewayOptions
}

// logFlags defines the flags of logs.
func (c *call) logFlags(f *logFlags) {
	c.flags.StringArrayVar(&f.files, "log", nil,
		"a `file` with an access log, plain or gzip; - reads standard input; repeat the flag, or list more behind it (required)")
	c.choiceFlag(&f.options.Format, "format", "", "the `format` of the logs",
		replay.FormatAuto, replay.FormatKong, replay.FormatNginx, replay.FormatCSV)
	c.flags.StringVar(&f.options.NginxFormat, "log-format", "",
		"the `log_format` of nginx, as in its configuration (default combined)")
	c.flags.Int64Var(&f.options.FirstLine, "from-line", 0, "skip the lines before this `number` of a log (default 1)")
	const sources = "the same sources as tenant_from, and repeatable"
	c.flags.StringSliceVar(&f.gateway.TenantFrom, "tenant-from", nil,
		"read the tenant from this `source` in place of the config's tenant_from; "+sources)
	c.flags.StringSliceVar(&f.gateway.UserFrom, "user-from", nil, "read the user from this `source` in place of user_from")
	c.flags.StringSliceVar(&f.gateway.TierFrom, "tier-from", nil, "read the tier from this `source` in place of tier_from")
	c.check(func() error { return c.checkLogs(f) })
}

func (c *call) checkLogs(f *logFlags) error {
	f.files = append(f.files, c.args...)
	switch {
	case len(f.files) == 0:
		return wrong("--log is required: an access log, such as --log access.jsonl")
	case f.options.NginxFormat != "" && f.options.Format != "" && f.options.Format != replay.FormatNginx:
		return wrong("--log-format is of --format nginx")
	case f.options.FirstLine < 0:
		return wrong("--from-line: %d: must be 1 or more", f.options.FirstLine)
	case f.options.FirstLine > 1 && len(f.files) > 1:
		return wrong("--from-line is for one log: %d are given", len(f.files))
	}
	if f.options.NginxFormat != "" {
		f.options.Format = replay.FormatNginx
	}
	for _, list := range [...]struct {
		flag    string
		sources []string
	}{
		{"tenant-from", f.gateway.TenantFrom}, {"user-from", f.gateway.UserFrom}, {"tier-from", f.gateway.TierFrom},
	} {
		if _, err := identity.ParseSources(list.sources, new([]string)); err != nil {
			return wrong("--%s: %v", list.flag, err)
		}
	}
	return nil
}

// deckFile reads the configs of a decK file.
func (c *call) deckFile(file string) (*routeconfig.File, error) {
	text, _, err := c.readAll(file)
	if err != nil {
		return nil, wrong("--config: %v", err)
	}
	return routeconfig.Read(text, file)
}

// clockSlack is how far the times of a log may be ahead of the clock here. Later ones are wrong.
const clockSlack = 24 * time.Hour

// openReplay opens logs, and the gateway that decides their requests.
func (c *call) openReplay(
	f *logFlags, file *routeconfig.File, rows *policy.Snapshot, route string,
) ([]*replay.Log, *replay.Gateway, error) {
	if route != "" && file.For(route, "") == nil {
		return nil, nil, wrong("--plugin-route: no config of the plugin applies to route %q", route)
	}
	o, options := f.gateway, f.options
	o.Rows, o.Route = rows, route
	options.Headers = replay.HeadersOf(file, o)
	options.Until = limit.Micros(c.now().Add(clockSlack).UnixMicro())
	logs, err := c.openLogs(f.files, options)
	if err != nil {
		return nil, nil, err
	}
	o.StatesTenants = logs[0].StatesTenants()
	for _, l := range logs {
		if l.StatesTenants() != o.StatesTenants {
			closeLogs(logs)
			return nil, nil, wrong("of %s and %s, one has a column tenant: replay them apart", logs[0].Name, l.Name)
		}
	}
	gateway, err := replay.NewGateway(file, o)
	if err != nil {
		closeLogs(logs)
		return nil, nil, err
	}
	return logs, gateway, nil
}

// replayLogs reads logs once, and calls decided with each decision.
func (c *call) replayLogs(
	ctx context.Context, f *logFlags, file *routeconfig.File, rows *policy.Snapshot, route string,
	decided func(*replay.Request, *decision.Decision),
) (*replay.Report, *replay.Gateway, error) {
	logs, gateway, err := c.openReplay(f, file, rows, route)
	if err != nil {
		return nil, nil, err
	}
	defer closeLogs(logs)
	for _, fault := range gateway.Faults {
		c.warn("a row is left out: %v", fault)
	}
	progress := c.newProgress(logs)
	report, err := replay.Run(ctx, replay.NewStream(logs, replay.StreamOptions{Progress: progress.show}), gateway, decided)
	progress.end()
	if err != nil {
		return nil, nil, fmt.Errorf("stopped after %s: %w", counted(report.Requests, "request"), err)
	}
	return report, gateway, nil
}

func (c *call) openLogs(files []string, o replay.LogOptions) (logs []*replay.Log, err error) {
	for _, file := range files {
		var l *replay.Log
		if file == "-" {
			l, err = replay.NewLog("standard input", c.stdin, o)
		} else {
			l, err = replay.Open(file, o)
		}
		if err != nil {
			closeLogs(logs)
			return nil, wrong("--log: %v", err)
		}
		logs = append(logs, l)
	}
	return logs, nil
}

// closeLogs closes logs that were only read, so that no error matters.
func closeLogs(logs []*replay.Log) {
	for _, l := range logs {
		_ = l.Close()
	}
}

// progress shows on a terminal how far logs have been read.
type progress struct {
	logs  []*replay.Log
	to    screen
	now   func() time.Time
	shown time.Time
}

const progressEvery = 200 * time.Millisecond

// newProgress returns a progress, which shows nothing unless standard error is a terminal.
func (c *call) newProgress(logs []*replay.Log) *progress {
	p := &progress{logs: logs, to: c.stderr, now: c.now}
	p.to.before = "\r\x1b[K"
	return p
}

// show shows the progress, if it is time.
func (p *progress) show() {
	now := p.now()
	if !p.to.isTerminal() || now.Sub(p.shown) < progressEvery {
		return
	}
	p.shown = now
	p.write(p.text())
}

// end removes the line of progress.
func (p *progress) end() {
	if p.to.isTerminal() && !p.shown.IsZero() {
		p.write("")
	}
}

// write writes a line in place of the last one. Progress that cannot be shown is no fault of the command.
func (p *progress) write(text string) { fmt.Fprint(p.to, text) }

// text returns the line of progress: how many lines are read, and how much of the logs.
func (p *progress) text() string {
	var lines, read, size int64
	for _, l := range p.logs {
		lines, read, size = lines+l.Lines(), read+l.Read(), size+l.Size
	}
	if size < read { // that of standard input is unknown
		return fmt.Sprintf("%d lines", lines)
	}
	return fmt.Sprintf("%d lines, %.0f %%", lines, 100*float64(read)/float64(max(size, 1)))
}
