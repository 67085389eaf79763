package denial

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
)

// complete has options under which a line has all its fields, and always the same text.
var complete = Options{
	Node: "kong-1", Salt: []byte("pepper"),
}

// identified are decisions with all that a line can say of them.
func identified(decisions []*decision.Decision) []*decision.Decision {
	for i, d := range decisions {
		d.RequestID, d.PolicyVersion = fmt.Sprintf("e6d8f4a%d", i+1), 31
		for i := range d.Resolution.Bounds {
			d.Resolution.Bounds[i].Policy.Row = 7
		}
	}
	return decisions
}

// written are the lines of decisions within one second, in their order if they are one line each.
func written(t testing.TB, options Options, decisions ...*decision.Decision) (lines []Line) {
	t.Helper()
	options.Log = slog.New(slog.DiscardHandler)
	r := New(options)
	r.epoch = "00c0ffee00c0ffee"
	for _, d := range decisions {
		r.Observe(d)
	}
	r.closeWindow()
	for _, g := range r.finished[0].groups {
		line, err := r.encode(g)
		require.NoError(t, err)
		lines = append(lines, line)
	}
	return lines
}

// kind is a kind of denial that has a golden line.
type kind struct {
	name      string
	options   Options
	decisions []*decision.Decision
}

func kinds() []kind {
	minute, closed := named("minute", policy.Tenant), named("billing", policy.TenantEndpoint)
	trial := named("trial", policy.User)
	closed.FailMode, trial.Mode = policy.FailClosed, policy.Shadow
	watch := named("watch", policy.UserEndpoint)
	watch.Mode = policy.Log
	never := decision.Status{Source: decision.Redis, Wait: limit.Never}
	overridden := decided("acme", answered{minute, denies})
	overridden.Resolution.Bounds[0].Override, overridden.Resolution.Bounds[0].Penalty = 5, 6
	overridden.Resolution.Bounds[0].Cost = 3
	later := decided("acme", answered{minute, localNo})
	later.Identity.User.ID = "u_43"
	anonymous := decided("192.0.2.7", answered{named("per-ip", policy.IP), denies})
	anonymous.Identity.Tenant.Kind = identity.IP
	anonymous.Identity.User = identity.Name{Kind: identity.IP, ID: "192.0.2.7"}
	banned := undecided("acme")
	banned.Resolution.Override, banned.Resolution.Until = 9, 90*limit.Second
	banned.Ban(30 * limit.Second)
	forGood := undecided("acme")
	forGood.Resolution.Override = 10
	forGood.Ban(30 * limit.Second)
	limited := deniedFor("acme", decision.MetaLimited)
	limited.RetryAfter = 1
	crowd := Options{MaxGroups: 1, Node: complete.Node, Salt: complete.Salt}
	unnamed := deniedFor("", decision.TenantMissing)
	unnamed.Identity = identity.Identity{Anonymous: true, TenantDenied: true}
	unnamed.Resolution.Tier = ""
	repeated := deniedFor("", decision.HeaderRepeated)
	repeated.Identity = identity.Identity{Anonymous: true, Repeated: "X-Org"}
	repeated.Resolution.Tier = ""
	preflight := decided("192.0.2.7", answered{named("flood", policy.IP), denies})
	preflight.Identity.Tenant.Kind = identity.IP
	preflight.Resolution.Exemption = resolve.Exemption{By: "preflight"}
	hasty := deniedFor("acme", decision.MetaLimited)
	hasty.Resolution.Exemption = resolve.Exemption{By: "cidr+endpoint", Entry: 12}
	hastyRow := deniedFor("acme", decision.MetaLimited)
	hastyRow.Resolution.Exemption = resolve.Exemption{By: "tenant", Override: 9}
	one := func(d *decision.Decision) []*decision.Decision { return []*decision.Decision{d} }
	list := []kind{
		{"quota", complete, one(decided("acme", answered{minute, denies}))},
		{
			"quota of the config, without a node",
			Options{Salt: complete.Salt},
			one(decided("acme", answered{named("minute", policy.Tenant), deniesLong})),
		},
		{"quota, changed by overrides", complete, one(overridden)},
		{"quota, and no wait helps", complete, one(decided("acme", answered{minute, never}))},
		{
			"quota of a share, then of Redis, for two users",
			complete,
			[]*decision.Decision{later, decided("acme", answered{minute, denies})},
		},
		{"quota of an anonymous address", complete, one(anonymous)},
		{"shadow", complete, one(decided("acme", answered{trial, denies}))},
		{"log", complete, one(decided("acme", answered{watch, denies}))},
		{"store_away", complete, one(decided("acme", answered{closed, unanswered}))},
		{"banned", complete, one(banned)},
		{"banned for good", complete, one(forGood)},
		{"tenant_missing", complete, one(unnamed)},
		{"user_missing", complete, one(deniedFor("acme", decision.UserMissing))},
		{"header_repeated", complete, one(repeated)},
		{"meta_limited", complete, one(limited)},
		{"quota of a preflight", complete, one(preflight)},
		{"meta_limited, although exempt", complete, one(hasty)},
		{"meta_limited, although exempt by an entry and then by a row", complete, []*decision.Decision{hasty, hastyRow}},
		{
			"others",
			crowd,
			[]*decision.Decision{
				decided("acme", answered{minute, denies}),
				decided("globex", answered{minute, denies}),
				decided("initech", answered{minute, denies}),
			},
		},
	}
	for _, k := range list {
		if k.options.Node != "" {
			identified(k.decisions)
		}
	}
	return list
}

func TestALineNamesTheFirstRequestsByTheirIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		minute := named("minute", policy.Tenant)
		var decisions []*decision.Decision
		for range 12 {
			decisions = append(decisions, decided("acme", answered{minute, denies}))
		}
		identified(decisions)
		decisions[0].RequestID = "" // Kong could not say
		var e event
		require.NoError(t, json.Unmarshal(written(t, complete, decisions...)[0].Text, &e))
		more := "e6d8f4a3 e6d8f4a4 e6d8f4a5 e6d8f4a6 e6d8f4a7 e6d8f4a8 e6d8f4a9 e6d8f4a10 e6d8f4a11"
		if e.Count != 12 || e.RequestID != "e6d8f4a2" || strings.Join(e.RequestIDs, " ") != more {
			t.Errorf("of %d requests %s and %s are named, want the first ten with an id", e.Count, e.RequestID, e.RequestIDs)
		}
	})
}

func TestLinesAreWhatWasPublished(t *testing.T) {
	published := readSchema(t)
	synctest.Test(t, func(t *testing.T) {
		var got bytes.Buffer
		for _, kind := range kinds() {
			got.WriteString("# " + kind.name + "\n")
			lines := written(t, kind.options, kind.decisions...)
			for i := range lines { // the last of several is that of others: groups come in any order, and so do ids
				var e event
				require.NoError(t, json.Unmarshal(lines[i].Text, &e))
				assert.NoError(t, check(published, lines[i].Text), "%s: %s", kind.name, lines[i].Text)
				if len(lines) == 1 || e.Others {
					got.Write(bytes.Replace(lines[i].Text, []byte(e.ID), []byte("00c0ffee00c0ffee-1"), 1))
					got.WriteByte('\n')
				}
			}
		}
		golden.Check(t, "testdata/lines.golden", got.String())
	})
}

func TestHostileNamesMakeValidLinesOfBoundedLength(t *testing.T) {
	published := readSchema(t)
	const worst = 16 << 10
	for name, text := range map[string]string{
		"quotes":          `"},{"org":"globex\`,
		"line breaks":     "a\nb\r\nc\u2028d\x00",
		"not UTF-8":       "\xff\xfeacme\xc3",
		"markup":          "<script>alert(1)</script>",
		"1 MiB":           strings.Repeat("x", 1<<20),
		"1 MiB of é":      "x" + strings.Repeat("é", 1<<19),
		"1 MiB of breaks": strings.Repeat("\n", 1<<20),
		"1 MiB of rubble": strings.Repeat("\x80", 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			d := decided(text, answered{named(text, policy.TenantEndpoint), denies})
			d.Identity.User.ID, d.Resolution.Endpoint, d.Resolution.Tier = text, text, text
			d.RequestID = text
			options := Options{ShowUsers: true, Node: text}
			line := written(t, options, d)[0]
			assert.NoError(t, check(published, line.Text), "%.2000s", line.Text)
			if bytes.ContainsAny(line.Text, "\n\r\x00\u2028") || !utf8.Valid(line.Text) || len(line.Text) > worst {
				t.Errorf("a line of %d bytes: %.2000q", len(line.Text), line.Text)
			}
			var e event
			require.NoError(t, json.Unmarshal(line.Text, &e))
			var cut []string
			want := readable(text)
			if len(text) > maxText {
				cut, want = []string{"org", "user", "endpoint", "tier", "request_id", "policy", "node"}, readable(clip(text))
			}
			if !slices.Equal(e.Truncated, cut) || e.Org != want || e.Endpoint != want || e.User != want || e.Policy != want {
				t.Errorf("truncated %q, org %.100q; want %q, %.100q", e.Truncated, e.Org, cut, want)
			}
		})
	}
}

func TestLongTenantsThatBeginAlikeHaveLinesOfTheirOwn(t *testing.T) {
	minute, long := named("minute", policy.Tenant), strings.Repeat("x", 1<<20)
	a, b := decided(long+"a", answered{minute, denies}), decided(long+"b", answered{minute, denies})
	lines := written(t, Options{}, a, b, a)
	if len(lines) != 2 || lines[0].Denials+lines[1].Denials != 3 || lines[0].Org != long[:maxText] {
		t.Errorf("%d lines, want one for each tenant", len(lines))
	}
}

// readable is text as JSON can carry it: each byte that is not UTF-8 is replaced.
func readable(text string) string { return string([]rune(text)) }

func TestALineHasNoCharacterOfANameThatATerminalObeys(t *testing.T) {
	t.Parallel()
	const org = "\u202eemca"
	d := new(decision.Decision)
	d.Reset()
	d.Identity.Tenant = identity.Name{Kind: identity.Tenant, ID: org}
	d.Deny(decision.Banned)
	line := written(t, complete, d)[0]
	var got struct{ Org string }
	if err := json.Unmarshal(line.Text, &got); err != nil || got.Org != org || bytes.ContainsRune(line.Text, '\u202e') {
		t.Errorf("%s (%v): want %q, escaped", line.Text, err, org)
	}
}
