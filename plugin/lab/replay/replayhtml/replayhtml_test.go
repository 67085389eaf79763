package replayhtml_test

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/lab/replay"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/lab/replay/replayhtml"
)

// report returns a report of two tenants, one of which has a name that browsers would obey.
func report() *replay.Report {
	from := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	first := from.Add(90 * time.Second)
	const hostile = `<script src="https://evil.example/x.js"></script>`
	row := replay.Row{
		Tenant: hostile, Tier: "gold", Policy: "daily", Mode: "shadow", Limit: "1000 per 86400 s (fixed_window) per tenant",
		Requests: 12345, Denied: 2345, FirstDenied: &first, FirstLine: "access.jsonl:17",
		Worst: &replay.Window{From: from, Seconds: 86400, Requests: 12345, Denied: 2345, Tokens: 12345, Percent: 1234.5},
	}
	quiet := replay.Row{Tenant: "globex", Policy: "daily", Mode: "enforce", Requests: 10}
	return &replay.Report{
		From: from, To: from.Add(time.Hour), Requests: 12355, ShadowDenied: 2345, ShadowDeniedPct: 18.98, Tenants: 2, Hurt: 1,
		WithoutTier: 10,
		Most:        []replay.Sum{{Name: hostile, Requests: 12345, Denied: 2345}},
		Policies:    []replay.Sum{{Name: "daily", Requests: 12355, Denied: 2345, Tenants: 1}},
		Rows:        []replay.Row{row, quiet},
		Counts: replay.Counts{
			Lines: 12360, Requests: 12355, Unparsed: 5, Late: 2,
			Problems: []replay.Problem{{Log: "access.jsonl", Line: 4, Problem: "is not JSON"}},
			Broken:   []replay.Problem{{Log: "access.jsonl", Line: 12361, Problem: "unexpected EOF"}},
		},
		Notes: []string{"policy tokens settles: a request is charged what it reserves"},
		Series: replay.Series{Step: 1800, Points: []replay.Point{
			{From: from, Requests: 6000, Denied: 345}, {From: from.Add(30 * time.Minute), Requests: 6355, Denied: 2000},
		}},
	}
}

func render(t *testing.T, r *replay.Report) string {
	t.Helper()
	var out bytes.Buffer
	source := replayhtml.Source{Logs: []string{"access.jsonl"}, Config: "kong.yml", Policies: "policies.yaml"}
	require.NoError(t, replayhtml.Write(&out, r, source))
	return out.String()
}

func TestTheReportIsAsInTheGoldenFile(t *testing.T) {
	golden.Check(t, "testdata/report.html", render(t, report()))
}

// link matches what loads something or leads elsewhere.
var link = regexp.MustCompile(`(?i)<[^>]*\s(src|href|action|data)\s*=|url\(|@import|<(script|img|iframe|link|object|form)`)

func TestTheReportLoadsNothingFromElsewhere(t *testing.T) {
	for _, r := range []*replay.Report{report(), {}} {
		page := render(t, r)
		if found := link.FindString(page); found != "" {
			t.Errorf("the page has %q", found)
		}
		if !strings.Contains(page, `content="default-src 'none'`) {
			t.Error("the page has no policy that forbids to load things")
		}
	}
}
