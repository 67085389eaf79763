package identity

// Caller names whom a request is from, as the program states that calls the limiter: one that uses the Go library, or
// that calls the decision API. It has authenticated its client, so what it states is trusted. A gateway sets none of
// it.
type Caller struct {
	Tenant, User, Tier string // "": it states none
	Cost               int64  // tokens; below 1: it states none
}

// MaxCallerCost bounds the cost that a caller states, in tokens. A higher one counts as this.
const MaxCallerCost = 1_000_000_000

// The sources that read what the caller states. No config can name them.
var (
	CallerTenant = Source{kind: fromCallerTenant}
	CallerUser   = Source{kind: fromCallerUser}
	CallerTier   = Source{kind: fromCallerTier}
)

// cost returns the cost that the caller states, or 0.
func (c *Caller) cost() int64 { return min(max(c.Cost, 0), MaxCallerCost) }
