package cli

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestAFaultyFieldHasTheFaultOfItsDeclarationInItsFlag(t *testing.T) {
	fields := schema.FieldsWithout[schema.Policy](policyKeyFields...)
	for _, c := range policytest.Faulty(t, "../../schema/testdata/faulty_policies.json") {
		wantFlagFault(t, fields, c.Field, c.Policy, c.Message)
	}
	ofOverride := schema.FieldsWithout[schema.Override](
		"reason", "author", "starts_at", "expires_at", "permanent", "source")
	for _, c := range policytest.FaultyOverrides(t, "../../schema/testdata/faulty_overrides.json") {
		wantFlagFault(t, ofOverride, c.Field, c.Override, c.Message)
	}
}

// wantFlagFault wants the fault of a field from its flag, or none: then the REST API finds it, unless the value is 0,
// which the API has as absent.
func wantFlagFault[T any](t *testing.T, fields []schema.Field[T], path string, values map[string]any, want string) {
	t.Helper()
	name, _, _ := strings.Cut(path, ".")
	i := slices.IndexFunc(fields, func(f schema.Field[T]) bool { return f.Name == name })
	value, given := values[name]
	if i < 0 || !given {
		return
	}
	text := fmt.Sprint(value)
	if record, ok := value.(map[string]any); ok {
		raw, err := json.Marshal(record)
		require.NoError(t, err)
		text = string(raw)
	}
	c := newCall(new(operator), versionCommand)
	fieldFlag(c, &fields[i], new(T))
	err := c.flags.Parse([]string{"--" + flagName(&fields[i]), text})
	if err == nil && strings.HasSuffix(want, "got 0") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%s %q: %v, want %s", name, text, err, want)
	}
}
