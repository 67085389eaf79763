package policy

import (
	"errors"
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
	_, err := compileLimit(p.Limit)
	faults := AppendFaults(nil, "", err)
	faults = AppendFaults(faults, "endpoint", checkPattern(p.Endpoint))
	return asError(AppendFaults(faults, "ip", checkAddress(policyField("ip").Must(), p.IP)))
}

// OverrideFaults returns everything that is wrong with an override by itself, as Faults does for a policy.
func OverrideFaults(o schema.Override) []schema.Fault { return o.Faults(overrideCompiles) }

// overrideCompiles returns why an override cannot be applied, as schema.Faults.
func overrideCompiles(o schema.Override) error {
	must := schema.FieldNamed(schema.OverrideFields(), "ip").Must()
	faults := AppendFaults(nil, "ip", checkAddress(must, o.IP))
	faults = AppendFaults(faults, "endpoint", checkPattern(o.Endpoint))
	switch o.Kind {
	case Exempt:
		faults = AppendFaults(faults, "endpoint", CheckExemptable(o.Endpoint))
	case CustomLimit:
		_, err := limit.New(customSpec(o))
		faults = AppendFaults(faults, "", err)
	}
	return asError(faults)
}

// checkAddress returns what is wrong with the address in a field.
func checkAddress(must, text string) error {
	if isAddress(text) {
		return nil
	}
	return fmt.Errorf("%s, got %q", must, docpath.Shorten(text))
}

// isAddress reports whether text is what the database takes as an address: one address, a network, or nothing.
func isAddress(text string) bool {
	if text == "" {
		return true
	}
	_, err := ParseNetwork(text)
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

// checkPattern returns what is wrong with an endpoint by itself.
func checkPattern(endpoint string) error {
	if endpoint == "" {
		return nil
	}
	_, err := ParsePattern(endpoint)
	return err
}

// asError returns faults as an error; none is nil.
func asError(faults schema.Faults) error {
	if len(faults) == 0 {
		return nil
	}
	return faults
}

// AppendFaults appends an error about a path, unless it is nil. A joined error becomes one fault each, and an error
// about a field gets the field's path.
func AppendFaults(faults schema.Faults, path string, err error) schema.Faults {
	if err == nil {
		return faults
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			faults = AppendFaults(faults, path, e)
		}
		return faults
	}
	fault := schema.Fault{Path: path, Message: err.Error()}
	if field := new(limit.FieldError); errors.As(err, &field) {
		fault = schema.Fault{Path: docpath.Join(path, field.Field), Message: field.Problem}
	}
	return append(faults, fault)
}
