// Package replay decides the requests of recorded traffic again, with the decision code of the plugin.
//
// [Open] reads requests from a log: the JSON of Kong's file-log and http-log, lines of nginx, or CSV. [Stream] merges
// logs and sorts their requests by the time at which they started. [Gateway] decides each request as the plugin in Kong
// would: through an admit.Decider for the config of the request's route, with buckets in memory, on a clock that shows
// the time of the request. [Run] adds the decisions up to a [Report].
//
// The package decides nothing itself. Package suggest derives limits from the same requests, and package
// replay/replayhtml renders a report for people.
package replay

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// Report is the result of a replay.
type Report struct {
	From     time.Time `json:"from"` // of the first request
	To       time.Time `json:"to"`   // of the last request
	Requests int64     `json:"requests"`

	Denied          int64   `json:"denied"`
	ShadowDenied    int64   `json:"shadow_denied"` // that would be denied if all policies were enforced
	DeniedPct       float64 `json:"denied_percent"`
	ShadowDeniedPct float64 `json:"shadow_denied_percent"`
	Uncovered       int64   `json:"uncovered"`    // on routes without the plugin
	Unmatched       int64   `json:"unmatched"`    // without a route in the log, where several may be theirs
	Undecided       int64   `json:"undecided"`    // that could not be decided
	WithoutTier     int64   `json:"without_tier"` // that the default tier decides, because the tenant's is not known

	Log      Logged   `json:"log"` // compares with the responses in the log
	Tenants  int      `json:"tenants"`
	Hurt     int      `json:"tenants_denied"` // tenants with a denial, also in shadow
	Most     []Sum    `json:"most_denied"`    // the tenants with most denials, at most maxSums
	Policies []Sum    `json:"policies"`       // all rows, by policy
	Rows     []Row    `json:"rows"`           // those with most denials first
	Counts   Counts   `json:"input"`
	Notes    []string `json:"notes"` // on what the numbers leave out
	Evicted  uint64   `json:"evicted_buckets"`

	UnmatchedRoutes []Unmatched `json:"unmatched_routes,omitempty"` // those with most requests first

	Series Series `json:"series"`
}

// Logged compares the decisions with the responses in the log.
type Logged struct {
	Answered   int64 `json:"answered"`    // requests whose status the log has
	Denied     int64 `json:"denied"`      // answered 429
	Both       int64 `json:"denied_both"` // answered 429, and denied now
	OnlyLog    int64 `json:"denied_only_in_log"`
	OnlyReplay int64 `json:"denied_only_in_replay"`
}

// Unmatched counts requests that the same routes may take. Kong chooses one of them by what the log lacks.
type Unmatched struct {
	Routes   []string `json:"routes"` // in words: each with what it matches that the log lacks
	Requests int64    `json:"requests"`
	First    string   `json:"first_at"` // log:line
}

const maxUnmatched = 20

// Text names the routes in a sentence.
func (u Unmatched) Text() string { return strings.Join(u.Routes, " or ") }

const maxSums = 20

// Sum adds up requests by tenant or by policy.
type Sum struct {
	Name     string `json:"name"`
	Endpoint string `json:"endpoint,omitempty"` // of a policy
	Limit    string `json:"limit,omitempty"`    // of a policy, in words; "": tenants have several
	Requests int64  `json:"requests"`
	Denied   int64  `json:"denied"`            // also in shadow
	Tenants  int    `json:"tenants,omitempty"` // of a policy: those with a denial
}

// DeniedShare returns the percentage of requests that are denied.
func (s *Sum) DeniedShare() float64 { return percent(s.Denied, s.Requests) }

func sumPolicies(rows []Row) []Sum {
	places := map[rowKey]int{}
	sums := []Sum{}
	for i := range rows {
		r := &rows[i]
		k := rowKey{policy: r.Policy, endpoint: r.Endpoint}
		at, ok := places[k]
		if !ok {
			at = len(sums)
			places[k] = at
			sums = append(sums, Sum{Name: r.Policy, Endpoint: r.Endpoint, Limit: r.Limit})
		}
		s := &sums[at]
		s.Requests, s.Denied = s.Requests+r.Requests, s.Denied+r.Denied
		if s.Limit != r.Limit {
			s.Limit = ""
		}
		if r.Denied > 0 && r.Tenant != Anonymous {
			s.Tenants++
		}
	}
	sortSums(sums)
	return sums
}

// sortSums sorts sums: most denials first, then by name.
func sortSums(sums []Sum) {
	slices.SortFunc(sums, func(a, b Sum) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Endpoint, b.Endpoint))
	})
}

// Row is what a policy did to a tenant.
type Row struct {
	Tenant   string `json:"tenant"`
	Tier     string `json:"tier,omitempty"`
	Policy   string `json:"policy"`
	Endpoint string `json:"endpoint,omitempty"` // of the policy
	Mode     string `json:"mode"`
	Limit    string `json:"limit,omitempty"` // in words

	Requests    int64      `json:"requests"` // that the policy applied to
	Denied      int64      `json:"denied"`   // for which it had no room, also in shadow
	FirstDenied *time.Time `json:"first_denial,omitempty"`
	FirstLine   string     `json:"first_denial_at,omitempty"` // log:line
	Worst       *Window    `json:"worst_window,omitempty"`    // with most denials, or else most tokens requested
}

// Window is one window of a policy, aligned to the epoch.
type Window struct {
	From     time.Time `json:"from"`
	Seconds  int64     `json:"seconds"`
	Requests int64     `json:"requests"`
	Denied   int64     `json:"denied"`
	Tokens   int64     `json:"tokens"`                     // that were requested, those of denied requests too
	Percent  float64   `json:"percent_of_limit,omitempty"` // where the limit counts the tenant as a whole
}

// DeniedShare returns the percentage of requests that are denied.
func (r *Row) DeniedShare() float64 { return percent(r.Denied, r.Requests) }

func percent(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}

// Series counts requests over time.
type Series struct {
	Step   float64 `json:"step_seconds"`
	Points []Point `json:"points"`
}

// Point counts the requests of one step.
type Point struct {
	From     time.Time `json:"from"`
	Requests int64     `json:"requests"`
	Denied   int64     `json:"denied"` // also in shadow
}

func instantTime(at limit.Micros) time.Time { return time.UnixMicro(int64(at)).UTC() }
