package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/simulate"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/simulate/simulatehtml"
)

var simulateCommand = &command{
	words: "simulate",
	args:  "[FILE]",
	brief: "simulate a fleet under load: what limits admit, and what they cost Redis",
	about: `It runs the decisions, leases and outage code of the plugin by a virtual clock, without Redis: nodes, tenants, load,
latency and faults are those of a scenario. FILE is a scenario in YAML, - for standard input, or the name of one that
is shipped. The same scenario and seed give the same report. docs/sizing.md explains the fields and the report.`,
	most:  1,
	exits: "0 simulated, 1 more was admitted than the docs allow, 2 usage error or a fault in the scenario",
	define: func(c *call) action {
		c.outputFlag()
		list := c.flags.Bool("list", false, "list the scenarios that are shipped")
		show := c.flags.Bool("show", false, "show the scenario instead of running it")
		seed := seedFlag{}
		c.flags.Var(&seed, "seed", "the `number` that all random choices depend on, instead of that of the scenario")
		html := c.flags.String("html", "", "also write charts to this `file`, which needs no network")
		return func(ctx context.Context) error {
			switch running := seed.given || *html != ""; {
			case *list && (*show || running || len(c.args) > 0):
				return wrong("--list takes no FILE, and neither --show nor --seed nor --html")
			case *show && running:
				return wrong("--show runs nothing: use it without --seed and --html")
			case *list:
				return c.listScenarios()
			case len(c.args) == 0:
				return wrong("expected FILE: a scenario, or the name of one that --list shows")
			}
			text, err := c.readScenario(c.arg())
			if err != nil {
				return wrong("%v", err)
			}
			scenario, err := simulate.Parse(text)
			if err != nil {
				return wrong("%s: %v", c.arg(), err)
			}
			if *show {
				_, err := c.stdout.Write(text)
				return err
			}
			if seed.given {
				scenario.Seed = seed.number
			}
			if err := notRead("--html", *html, c.arg()); err != nil {
				return err
			}
			return c.simulate(ctx, scenario, *html)
		}
	},
}

// seedFlag is a seed as a flag.
type seedFlag struct {
	number uint64
	given  bool
}

func (s *seedFlag) String() string { return strconv.FormatUint(s.number, 10) }

// Set implements pflag.Value.
func (s *seedFlag) Set(text string) (err error) {
	if s.number, err = strconv.ParseUint(text, 10, 64); err != nil {
		return errors.New("must be a whole number from 0 to 18446744073709551615")
	}
	s.given = true
	return nil
}

// Type implements pflag.Value.
func (s *seedFlag) Type() string { return "number" }

// shippedScenario is a row of --list.
type shippedScenario struct {
	Name  string `json:"name"`
	About string `json:"about"`
}

func (c *call) listScenarios() error {
	var rows []shippedScenario
	for _, name := range simulate.Shipped() {
		text, _ := simulate.ReadShipped(name)
		scenario, err := simulate.Parse(text)
		if err != nil {
			return fmt.Errorf("scenario %s: %w", name, err)
		}
		rows = append(rows, shippedScenario{name, scenario.About})
	}
	return c.print(rows, func(out *page) {
		columns(out, "NAME|ABOUT", rows, func(s shippedScenario) []any { return []any{s.Name, s.About} })
	})
}

// readScenario returns the text of a file, or of a shipped scenario of that name.
func (c *call) readScenario(file string) (text []byte, err error) {
	err = c.read(file, func(r io.Reader, _ string) (err error) {
		text, err = io.ReadAll(r)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		if text, ok := simulate.ReadShipped(file); ok {
			return text, nil
		}
	}
	return text, err
}

// simulate runs a scenario and shows the report. It also writes a page of charts; "": none.
func (c *call) simulate(ctx context.Context, scenario *simulate.Scenario, html string) error {
	report, err := scenario.Run(ctx, c.showProgress())
	if err != nil {
		return err
	}
	if html != "" {
		if err := writeFile(html, func(w io.Writer) error { return simulatehtml.Write(w, report) }); err != nil {
			return fmt.Errorf("--html: %w", err)
		}
	}
	if err := c.print(report, func(out *page) { writeReport(out, report) }); err != nil {
		return err
	}
	c.finished(report)
	if !report.WithinDocs {
		return exitStatus(exitFailed)
	}
	return nil
}

// showProgress returns what shows on a terminal how much is simulated; nil: there is none.
func (c *call) showProgress() func(done float64) {
	to, began := c.stderr, c.now()
	if !to.isTerminal() {
		return nil
	}
	to.before = "\r\x1b[K"
	shown := began
	return func(done float64) {
		now := c.now()
		if done <= 0 || now.Sub(shown) < progressEvery {
			return
		}
		shown = now
		left := time.Duration(float64(now.Sub(began)) * (1 - done) / done)
		fmt.Fprintf(to, "%.0f%% simulated, %v left", 100*done, left.Round(time.Second))
	}
}

// finished shows on a terminal how long the simulation took: that is no part of the report, which repeats.
func (c *call) finished(r *simulate.Report) {
	if to := c.stderr; to.isTerminal() {
		to.before = "\r\x1b[K"
		fmt.Fprintf(to, "%g s of %d requests took %s\n", r.Seconds, r.Offered, r.Took.Round(time.Millisecond))
	}
}
