package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/lab/replay"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/lab/replay/replayhtml"
)

var replayCommand = &command{
	words: "replay", args: "[LOG ...]", brief: "show whom limits would have denied, by recorded traffic",
	about: `It decides each request of access logs with the plugin's own code, on a clock that shows the time of the
request, and shows how often each policy would have denied each tenant. Nothing is spent, and no Kong or Redis is
needed.

  ratelimit replay --config kong.yml --policies policies.yaml --log access.jsonl.gz --html report.html

Logs are the JSON of Kong's file-log or http-log plugins, lines of nginx (--format nginx, with --log-format unless it is
combined) or CSV, each plain or compressed by gzip. Requests are sorted by their start within ten minutes. Lines that
hold no request are counted and shown.

The routes in the log select the configs, as in Kong. The consumers of --config add the tags and names that the log
lacks; requests whose tenant still has no tier are counted. Logs carry no tokens: if a config reads names from
jwt.<claim>, say with --tenant-from what to use.`,
	exits: "0 success, 1 failure, 2 usage error, 3 a log breaks off, 5 more is denied than --fail-if-denied-above allows",
	define: func(c *call) action {
		f := c.replayFlags()
		return func(ctx context.Context) error { return c.replay(ctx, f) }
	},
}

// exitDenied is the exit code of a replay that denies more than --fail-if-denied-above.
const exitDenied = 5

type replayFlags struct {
	config   configFlags
	logs     logFlags
	policies string
	snapshot string
	html     string
	active   bool
	open     bool    // the open candidate
	most     float64 // percent
	bounded  bool    // by most
	rows     int
}

func (c *call) replayFlags() *replayFlags {
	f := new(replayFlags)
	c.flags.StringVar(&f.config.file, "config", "", "the decK `file` with the plugin's configs and consumers (required)")
	c.flags.StringVar(&f.config.route, "plugin-route", "",
		"decide all requests as of this `route`, such as those of logs without routes")
	c.flags.StringVar(&f.policies, "policies", "", "a `file` of policies, as of ratelimit apply, beside the configs")
	c.flags.StringVar(&f.snapshot, "snapshot", "",
		"read tenants, overrides and policies from this `file`, a node's snapshot; --policies replaces its policies")
	c.flags.BoolVar(&f.active, "active", false,
		"read tenants, overrides and policies from the database, instead of from --snapshot")
	c.flags.BoolVar(&f.open, "candidate", false, "as --active, with the changes that the open candidate makes")
	c.databaseFlag()
	c.logFlags(&f.logs)
	c.flags.Func("fail-if-denied-above",
		"exit with 5 if a greater `percentage` of requests is denied, or would be outside shadow mode, such as 0.1%",
		f.setMost)
	c.flags.StringVar(&f.html, "html", "", "also write a report with charts to this `file`, which needs no network")
	c.flags.IntVar(&f.rows, "max", 50, "the most `rows` of the table; 0: all (default 50)")
	c.outputFlagOf(formatTable, formatJSON, formatCSV)
	c.check(func() error {
		if f.config.file == "" {
			return wrong("--config is required: the decK file with the plugin's configs, such as --config kong.yml")
		}
		if f.rows < 0 {
			return wrong("--max: %d: must be 0 or more", f.rows)
		}
		return f.checkRows()
	})
	return f
}

// checkRows checks which rows are put beside the configs.
func (f *replayFlags) checkRows() error {
	switch {
	case f.open && f.active:
		return wrong("use either --active or --candidate, not both")
	case f.open && f.policies != "":
		return wrong("use either --policies or --candidate, not both")
	case (f.open || f.active) && f.snapshot != "":
		return wrong("use either --snapshot or the database, not both")
	}
	return nil
}

func (f *replayFlags) setMost(text string) error {
	n, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	if err != nil || !(n >= 0 && n <= 100) {
		return errors.New("must be a percentage from 0% to 100%, such as 0.1%")
	}
	f.most, f.bounded = n, true
	return nil
}

func (c *call) replay(ctx context.Context, f *replayFlags) error {
	inputs := append([]string{f.config.file, f.policies, f.snapshot}, f.logs.files...)
	if err := notRead("--html", f.html, inputs...); err != nil {
		return err
	}
	file, err := c.deckFile(f.config.file)
	if err != nil {
		return err
	}
	rows, err := c.replayedRows(ctx, f)
	if err != nil {
		return err
	}
	report, gateway, err := c.replayLogs(ctx, &f.logs, file, rows, f.config.route, nil)
	if err != nil {
		return err
	}
	for _, config := range file.OfConsumers() {
		report.Notes = append(report.Notes,
			fmt.Sprintf("the config on %s is left out: logs do not say which config Kong ran", config))
	}
	report.Notes = append(report.Notes, gateway.Notes()...)
	if err := c.showReplay(report, f.rows); err != nil {
		return err
	}
	if f.html != "" {
		source := replayhtml.Source{Logs: f.logs.files, Config: f.config.file, Policies: f.policies}
		if err := writeFile(f.html, func(w io.Writer) error { return replayhtml.Write(w, report, source) }); err != nil {
			return fmt.Errorf("--html: %w", err)
		}
	}
	return f.verdict(c, report)
}

// replayedRows returns the rows that replay puts beside the configs, or nil without any.
func (c *call) replayedRows(ctx context.Context, f *replayFlags) (*policy.Snapshot, error) {
	var (
		saved policysync.Saved
		err   error
	)
	switch {
	case f.active || f.open:
		saved, err = c.activeRows(ctx)
	case f.snapshot != "":
		saved, err = readSaved(f.snapshot)
	case f.policies == "":
		return nil, nil
	}
	if err == nil && f.policies != "" {
		var d document
		if err = c.readDocument(&d, "--policies", f.policies); err == nil {
			d.replaceIn(&saved.Rows)
		}
	}
	if err == nil && f.open && saved.Candidate == nil {
		err = errNoCandidate
	}
	if err != nil {
		return nil, err
	}
	snapshot, faults := policy.NewSnapshot(saved.Rows, nil)
	if f.open {
		beside, more := snapshot.WithCandidate(saved.Candidate)
		snapshot, faults = beside.Overlay().Snapshot, append(faults, more...)
	}
	for _, fault := range faults {
		c.warn("a row is left out: %v", fault)
	}
	return snapshot, nil
}

// activeRows returns the rows of the database, and its open candidate.
func (c *call) activeRows(ctx context.Context) (policysync.Saved, error) {
	_, closeStore, err := c.open(ctx)
	if err != nil {
		return policysync.Saved{}, err
	}
	defer closeStore()
	return policysync.Load(ctx, c.pool)
}

// verdict returns the exit code of a replay.
func (f *replayFlags) verdict(c *call, r *replay.Report) error {
	if f.bounded {
		if r.Requests == r.Uncovered+r.Unmatched+r.Undecided {
			return errors.New("--fail-if-denied-above: no request was decided: do the format, the logs and the routes fit?")
		}
		if share := r.DeniedPct + r.ShadowDeniedPct; share > f.most {
			c.warn("%.4g%% of the requests are denied, or would be: more than %v%%", share, f.most)
			return exitStatus(exitDenied)
		}
	}
	if r.Counts.Requests == 0 && r.Counts.Unparsed > 0 && len(r.Counts.Broken) == 0 {
		return errors.New("no line of the logs holds a request: does --format fit, and is each line shorter than 1 MiB?")
	}
	return c.brokenLogs(r.Counts)
}

// brokenLogs reports logs that break off, with the lines to resume at, and returns the exit code.
func (c *call) brokenLogs(counts replay.Counts) error {
	for _, b := range counts.Broken {
		c.warn("%s breaks off (%s): once it is whole, read it again, or with --from-line %d the other lines alone, "+
			"whose buckets are full at first", b.Log, b.Problem, b.Line)
	}
	if len(counts.Broken) > 0 {
		return exitStatus(exitIncomplete)
	}
	return nil
}

// notRead returns an error if a file to write is one of those that the command reads.
func notRead(flag, output string, inputs ...string) error {
	written, err := os.Stat(output)
	if output == "" || err != nil {
		return nil // there is nothing to overwrite
	}
	for _, input := range inputs {
		if read, err := os.Stat(input); err == nil && os.SameFile(written, read) {
			return wrong("%s: %s is read too, and would be overwritten: name another file", flag, output)
		}
	}
	return nil
}

// writeFile writes a file anew.
func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(f)
	err = write(out)
	if err == nil {
		err = out.Flush()
	}
	return errors.Join(err, f.Close())
}

// showReplay shows a report; as a page, with at most so many of its rows, or all for 0, and without its course.
func (c *call) showReplay(r *replay.Report, most int) error {
	if c.format == formatCSV {
		return showCSV(c.stdout, items(r.Rows), "tenant", "tier", "policy", "endpoint", "mode", "limit", "requests", "denied",
			"first_denial", "first_denial_at", "worst_from=worst_window.from", "worst_seconds=worst_window.seconds",
			"worst_requests=worst_window.requests", "worst_denied=worst_window.denied", "worst_tokens=worst_window.tokens")
	}
	return c.print(r, func(out *page) {
		short := *r
		if most > 0 && len(r.Rows) > most {
			short.Rows = r.Rows[:most]
		}
		out.show(struct {
			replay.Report
			Series *struct{} `json:"series,omitempty"`
		}{Report: short})
		if left := len(r.Rows) - len(short.Rows); left > 0 {
			out.line("and %s with fewer denials: --max 0 shows all", counted(left, "row"))
		}
	})
}
