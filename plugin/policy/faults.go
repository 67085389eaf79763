package policy

import "github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"

// Faults returns everything that is wrong with a policy by itself, in the order of its fields: what its declaration
// says, arithmetic that would not be exact, and a pattern that matches nothing. Every way to write a policy, and every
// node that reads one, reports these. Whether its endpoint is ambiguous beside those of others is for NewSnapshot to
// find.
func Faults(p schema.Policy) []schema.Fault { return p.Faults(compiles) }

// compiles returns why a limit cannot be counted, as schema.Faults.
func compiles(p schema.Policy) error {
	var c compiler
	if _, err := compileLimit(p.Limit); err != nil {
		c.fault("", err)
	}
	if p.Endpoint != "" {
		if _, err := ParsePattern(p.Endpoint); err != nil {
			c.fault("endpoint", err)
		}
	}
	if len(c.faults) == 0 {
		return nil
	}
	return c.faults
}
