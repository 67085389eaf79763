package response

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const (
	fewLimits = 4 // RateLimit lists all limits of a request with at most so many, unless the config says otherwise
	// maxListed bounds the limits that RateLimit lists, and maxField the bytes of any other list: proxies on the way bound
	// the size of all headers together. With names of 64 bytes RateLimit and RateLimit-Policy are shorter than 4 KiB.
	maxListed = 16
	maxField  = 2 << 10
)

// listedWith returns the most limits that a request may have for RateLimit to list them all.
func listedWith(header string) int {
	switch header {
	case schema.ListBinding:
		return 0
	case schema.ListAll:
		return math.MaxInt
	}
	return fewLimits
}

// exposedBy returns the names of the headers that a config may send, or "" if it does not expose them.
func exposedBy(config *schema.Config) string {
	if !config.ExposeHeaders {
		return ""
	}
	names := []string{
		"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "X-RateLimit-Warning",
		"RateLimit-Policy", "RateLimit", "Retry-After",
	}
	if config.KongHeaders {
		names = append(names, "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")
	}
	if config.ShowCost {
		names = append(names, "X-RateLimit-Cost")
	}
	if config.DegradedHeader {
		names = append(names, "X-RateLimit-Degraded")
	}
	return strings.Join(names, ", ")
}

// fields writes RateLimit-Policy and RateLimit. They have no unit for tokens and time, so they omit limits that settle
// those.
func (re *Renderer) fields(d *decision.Decision, shown int, r *Response) {
	listed := 0
	for i := range d.Resolution.Bounds {
		if re.lists(&d.Resolution.Bounds[i]) {
			listed++
		}
	}
	if listed == 0 {
		return
	}
	var few [maxListed]int
	current := re.current(d, shown, listed <= re.fewest, few[:0])
	re.policies(d, shown, current, r)
	start := len(r.buf)
	for _, i := range current {
		status := &d.Statuses[i]
		r.separate(start)
		r.buf = append(append(append(r.buf, '"'), d.Resolution.Bounds[i].Policy.Name...), `";r=`...)
		r.buf = append(strconv.AppendInt(r.buf, status.Remaining, 10), `;t=`...)
		r.buf = strconv.AppendInt(r.buf, untilMore(status), 10)
	}
	if len(current) > 0 {
		r.end("RateLimit", start)
	}
}

// policies writes RateLimit-Policy. It lists all enforced limits whose numbers clients read, always in the same order,
// because a value that does not change is compressed. If they exceed maxField, it lists the limits of RateLimit, and
// the first of the others that fit. A period is that of the instant at which the limit that is shown was decided, where
// no store has answered for its own limit: this node remembers what denies, and asks for nothing else then.
func (re *Renderer) policies(d *decision.Decision, shown int, current []int, r *Response) {
	room := maxField // for the others: items and their commas
	for _, i := range current {
		room -= d.Resolution.Bounds[i].Policy.QuotaLength() + 1
	}
	start := len(r.buf)
	for i := range d.Resolution.Bounds {
		bound := &d.Resolution.Bounds[i]
		if !re.lists(bound) {
			continue
		}
		if !slices.Contains(current, i) {
			if room -= bound.Policy.QuotaLength() + 1; room < 0 {
				continue
			}
		}
		r.separate(start)
		r.buf = bound.Policy.AppendQuota(r.buf, cmp.Or(d.Statuses[i].Now, d.Statuses[shown].Now))
	}
	r.end("RateLimit-Policy", start)
}

// current appends the limits that RateLimit lists: the one shown, and with all those beside it that a store answered
// for. On a denial these are the ones that deny, so the field is as short as can be, and the same whether this node
// denies from memory or Redis does.
func (re *Renderer) current(d *decision.Decision, shown int, all bool, into []int) []int {
	if re.lists(&d.Resolution.Bounds[shown]) {
		into = append(into, shown)
	}
	if !all {
		return into
	}
	items := 1
	for i := range d.Statuses {
		bound, status := &d.Resolution.Bounds[i], &d.Statuses[i]
		if i == shown || status.Source == decision.Unanswered || !re.lists(bound) || d.Denied() && status.Admits() {
			continue
		}
		if items++; items > maxListed {
			break
		}
		into = append(into, i)
	}
	return into
}

// lists reports whether the structured fields list a bound: it is enforced and matches the request, clients read its
// numbers, and the fields have a unit for what it counts.
func (re *Renderer) lists(b *policy.Bound) bool {
	return b.Policy.Quota != "" && b.Decides() && re.Shows(b)
}

// separate appends a comma unless the list that begins at start is empty.
func (r *Response) separate(start int) {
	if len(r.buf) > start {
		r.buf = append(r.buf, ',')
	}
}

// untilMore returns the seconds until there is more quota: enough for a denied request, all of it for others.
func untilMore(s *decision.Status) int64 {
	if !s.Admits() && s.Wait != limit.Never {
		return max(s.Wait.Seconds(), 1)
	}
	return (s.Reset - s.Now).Seconds()
}
