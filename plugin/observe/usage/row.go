package usage

import (
	"cmp"
	"strings"
)

// Key identifies a row.
type Key struct {
	Tenant   string // "": none
	Endpoint string // a pattern or the name of a route; "": none
	Policy   string // the text of a policy.Ref; "": the row counts requests, not what a policy did
}

// compare orders keys by tenant, endpoint and policy.
func (k Key) compare(o Key) int {
	return cmp.Or(strings.Compare(k.Tenant, o.Tenant), strings.Compare(k.Endpoint, o.Endpoint),
		strings.Compare(k.Policy, o.Policy))
}

// Counts holds the numbers of a row. Make it with noCounts: the zero value has nothing left of a limit.
type Counts struct {
	Admitted     int64 // requests
	Soft         int64 // of these, the ones above the soft threshold
	Denied       int64 // requests
	ShadowDenied int64 // requests that would have been denied outside shadow or log mode, admitted or denied
	Cost         int64 // tokens charged, changes by settlements included; 0 in the row without a policy
	Remaining    int64 // the least that was left of the policy's limit; NoRemaining: unknown
}

// NoRemaining means that nothing is recorded of what was left of a limit.
const NoRemaining = -1

// maxCount bounds each number of a row: sums stop there.
const maxCount = 1 << 53

var noCounts = Counts{Remaining: NoRemaining}

// Add adds the numbers of another row of the same key.
func (c *Counts) Add(o Counts) {
	c.Admitted = sum(c.Admitted, o.Admitted)
	c.Soft = sum(c.Soft, o.Soft)
	c.Denied = sum(c.Denied, o.Denied)
	c.ShadowDenied = sum(c.ShadowDenied, o.ShadowDenied)
	c.Cost = sum(c.Cost, o.Cost)
	if o.Remaining != NoRemaining {
		c.lower(o.Remaining)
	}
}

// lower records what was left of a limit.
func (c *Counts) lower(remaining int64) {
	if remaining = min(max(remaining, 0), maxCount); c.Remaining == NoRemaining || remaining < c.Remaining {
		c.Remaining = remaining
	}
}

// sum returns a + b within the bounds of a row.
func sum(a, b int64) int64 {
	return min(max(a+min(max(b, -maxCount), maxCount), -maxCount), maxCount)
}

// valid reports whether the numbers are within their bounds.
func (c *Counts) valid() bool {
	for _, n := range [...]int64{c.Admitted, c.Soft, c.Denied, c.ShadowDenied} {
		if n < 0 || n > maxCount {
			return false
		}
	}
	return -maxCount <= c.Cost && c.Cost <= maxCount && NoRemaining <= c.Remaining && c.Remaining <= maxCount
}

// Row counts what happened under one key.
type Row struct {
	Key
	Counts
}
