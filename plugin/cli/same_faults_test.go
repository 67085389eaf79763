package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestAFaultyPolicyHasTheSameFaultInAFileAndInFlagsAsInTheConfig(t *testing.T) {
	for _, c := range policytest.Faulty(t, "../../schema/testdata/faulty_policies.json") {
		var d document
		err := d.read(strings.NewReader("policies: ["+c.JSON(t)+"]"), "p.yaml")
		if want := "p.yaml:1: policies[0]." + c.Field + ": " + c.Message; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a file with %s: %v, want %s", c.JSON(t), err, want)
		}
		if err := byFlags(c.Policy); err == nil || !strings.Contains(err.Error(), c.Message) {
			t.Errorf("flags of %s: %v, want %s", c.JSON(t), err, c.Message)
		}
	}
}

// byFlags returns what is wrong with a policy that is given by flags.
func byFlags(values map[string]any) error {
	o := &operator{
		getenv: func(string) string { return "" },
		stdout: screen{to: io.Discard}, stderr: screen{to: io.Discard},
	}
	var fields *policyFields
	command := &command{words: "put", brief: "put"}
	command.define = func(c *call) action { fields = c.limitFlags(); return nil }
	call := newCall(o, command)
	var line []string
	for _, f := range schema.PolicyFields() {
		value, given := values[f.Name]
		if record, ok := value.(map[string]any); ok {
			text, err := json.Marshal(record)
			if err != nil {
				return err
			}
			value = string(text)
		}
		if name := strings.ReplaceAll(f.Name, "_", "-"); given && call.flags.Lookup(name) != nil {
			line = append(line, "--"+name, fmt.Sprint(value))
		} else if given && f.Flag != "" {
			line = append(line, "--"+f.Flag, fmt.Sprint(value))
		}
	}
	if err := call.flags.Parse(line); err != nil {
		return flagFault(call.cobra, err)
	}
	key := map[string]any{}
	for _, name := range policyKeyFields {
		key[name] = values[name]
	}
	text, err := json.Marshal(key)
	if err == nil {
		err = json.Unmarshal(text, &fields.Policy.Policy)
	}
	if faults := policy.Faults(fields.Policy.Policy); err == nil && len(faults) > 0 {
		err = errors.New(schema.Faults(faults).Error())
	}
	return err
}

func TestAFaultyOverrideHasTheSameFaultInFlagsAsInItsDeclaration(t *testing.T) {
	for _, c := range policytest.FaultyOverrides(t, "../../schema/testdata/faulty_overrides.json") {
		line := []string{"--tenant", "acme"}
		if c.All {
			line = nil
		}
		if err := overrideByFlags(line, c.Override); err == nil || !strings.Contains(err.Error(), c.Message) {
			t.Errorf("flags of %v: %v, want %s", c.Override, err, c.Message)
		}
	}
}

// overrideByFlags returns what is wrong with an override that is given by flags: those of line, and those of values.
func overrideByFlags(line []string, values map[string]any) error {
	o := &operator{
		getenv: func(string) string { return "" },
		stdout: screen{to: io.Discard}, stderr: screen{to: io.Discard},
	}
	var row *rows.Override
	command := &command{words: "add", brief: "add"}
	command.define = func(c *call) action { row = c.overrideFlags(); return nil }
	call := newCall(o, command)
	for _, f := range schema.OverrideFields() {
		value, given := values[f.Name]
		name := cmp.Or(f.Flag, strings.ReplaceAll(f.Name, "_", "-"))
		switch {
		case !given || call.flags.Lookup(name) == nil:
		case f.Name == "factor":
			thousandths, err := strconv.ParseInt(fmt.Sprint(value), 10, 64)
			if err != nil {
				return err
			}
			line = append(line, "--factor", formatFactor(thousandths))
		default:
			line = append(line, "--"+name, fmt.Sprint(value))
		}
	}
	if err := call.flags.Parse(line); err != nil {
		return flagFault(call.cobra, err)
	}
	end, err := json.Marshal(map[string]any{
		"starts_at": values["starts_at"], "expires_at": values["expires_at"], "permanent": values["permanent"],
		"reason": "a test", "author": "ann",
	})
	if err == nil {
		err = json.Unmarshal(end, &row.Override)
	}
	if faults := policy.OverrideFaults(row.Override); err == nil && len(faults) > 0 {
		err = schema.Faults(faults)
	}
	return err
}
