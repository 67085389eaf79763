package policy

import (
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Faults returns everything that is wrong with a policy by itself, in the order of its fields: what its declaration
// says, arithmetic that would not be exact, and a pattern that matches nothing. Every way to write a policy, and every
// node that reads one, reports these. NewSnapshot finds endpoints that are ambiguous with others.
func Faults(p schema.Policy) []schema.Fault { return p.Faults(compiles) }

// compiles returns why a limit cannot be counted, as schema.Faults.
func compiles(p schema.Policy) error {
	var c compiler
	if _, err := compileLimit(p.Limit); err != nil {
		c.fault("", err)
	}
	c.checkPattern(p.Endpoint)
	checkAddress(&c, policyField("ip"), p.IP)
	return c.err()
}

// OverrideFaults returns everything that is wrong with an override by itself, as Faults does for a policy.
func OverrideFaults(o schema.Override) []schema.Fault { return o.Faults(overrideCompiles) }

// overrideCompiles returns why an override cannot be applied, as schema.Faults.
func overrideCompiles(o schema.Override) error {
	var c compiler
	checkAddress(&c, schema.FieldNamed(schema.OverrideFields(), "ip"), o.IP)
	c.checkPattern(o.Endpoint)
	if o.Kind == Exempt && !isExemptable(o.Endpoint) {
		c.fault("endpoint", errAmbiguousPath)
	}
	if o.Kind == CustomLimit {
		if _, err := limit.New(customSpec(o)); err != nil {
			c.fault("", err)
		}
	}
	return c.err()
}

// checkAddress adds what is wrong with the address in a field.
func checkAddress[T any](c *compiler, field *schema.Field[T], text string) {
	if !isAddress(text) {
		c.fault(field.Name, fmt.Errorf("%s, got %q", field.Must(), docpath.Shorten(text)))
	}
}

// isAddress reports whether text is what the database takes as an address: one address, a network, or nothing.
func isAddress(text string) bool {
	if text == "" {
		return true
	}
	_, err := network(text)
	return err == nil
}

// customSpec returns the limit of a custom_limit, where the policy is a token_bucket.
func customSpec(o schema.Override) limit.Spec {
	spec := limit.Spec{
		Algorithm: limit.TokenBucket, Quantity: o.Limit, Window: windowMicros(o.WindowSize), Burst: o.Burst,
	}
	if o.WindowSize == 0 {
		spec.Window = limit.Second // the policy's own takes its place
	}
	return spec
}

// checkPattern adds what is wrong with an endpoint by itself.
func (c *compiler) checkPattern(endpoint string) {
	if endpoint == "" {
		return
	}
	if _, err := ParsePattern(endpoint); err != nil {
		c.fault("endpoint", err)
	}
}

// err returns the faults as an error; none is nil.
func (c *compiler) err() error {
	if len(c.faults) == 0 {
		return nil
	}
	return c.faults
}
