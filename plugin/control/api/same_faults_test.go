package api_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestAFaultyPolicyHasTheSameFaultInTheAPIAndTheStoreAsInTheConfig(t *testing.T) {
	t.Parallel()
	w := open(t)
	for _, c := range policytest.Faulty(t, "../../../schema/testdata/faulty_policies.json") {
		body := c.JSON(t)
		faults := map[string]bool{}
		for _, f := range read[problem](w, w.want(w.as("POST", policies, body), http.StatusUnprocessableEntity)).Errors {
			faults[f.Location+": "+f.Message] = true
		}
		if !faults["body."+c.Field+": "+c.Message] {
			t.Errorf("POST %s: %v, want %s: %s", body, faults, c.Field, c.Message)
		}
		var p rows.Policy
		require.NoError(t, json.Unmarshal([]byte(body), &p))
		if strings.HasSuffix(c.Message, "got 0") {
			continue // in a row of Go 0 is absent
		}
		_, _, err := w.store.PutPolicy(t.Context(), rows.Change{Actor: "ann", Reason: "r"}, p)
		if invalid := new(rows.InvalidError); !errors.As(err, &invalid) ||
			!strings.Contains(err.Error(), c.Field+": "+c.Message) {
			t.Errorf("put %s: %v, want %s: %s", body, err, c.Field, c.Message)
		}
	}
}

func TestAFaultyOverrideHasTheSameFaultInTheAPIAndTheStoreAsInItsDeclaration(t *testing.T) {
	t.Parallel()
	w := open(t)
	for _, c := range policytest.FaultyOverrides(t, "../../../schema/testdata/faulty_overrides.json") {
		text, err := json.Marshal(c.Override)
		require.NoError(t, err)
		body, path := string(text), overrides
		if c.All {
			path = generalOverrides
		}
		found := map[string]bool{}
		for _, f := range read[problem](w, w.want(w.as("POST", path, body), http.StatusUnprocessableEntity)).Errors {
			found[f.Location+": "+f.Message] = true
		}
		if !found["body."+c.Field+": "+c.Message] {
			t.Errorf("POST %s: %v, want %s: %s", body, found, c.Field, c.Message)
		}
		if c.IsAbsent() {
			continue // in a row of Go
		}
		_, _, err = w.store.AddOverride(t.Context(),
			rows.Change{Actor: "ann", Reason: "r"}, rows.Override{Override: c.Row})
		invalid := new(rows.InvalidError)
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), c.Field+": "+c.Message) {
			t.Errorf("add %s: %v, want %s: %s", body, err, c.Field, c.Message)
		}
	}
}

func TestAFaultyTenantHasTheSameFaultInTheAPIAndTheStoreAsInItsDeclaration(t *testing.T) {
	t.Parallel()
	w := open(t)
	for name, c := range map[string]struct {
		field  string
		tenant schema.Tenant
	}{
		"a long id":                    {"id", schema.Tenant{ID: strings.Repeat("x", 129)}},
		"a long tier":                  {"tier", schema.Tenant{ID: "acme", Tier: strings.Repeat("x", 65)}},
		"a long time zone":             {"time_zone", schema.Tenant{ID: "acme", TimeZone: strings.Repeat("x", 65)}},
		"an unknown time zone":         {"time_zone", schema.Tenant{ID: "acme", TimeZone: "Europe/Atlantis"}},
		"the time zone of one machine": {"time_zone", schema.Tenant{ID: "acme", TimeZone: "Local"}},
	} {
		message := schema.FieldNamed[schema.Tenant](c.field).Must()
		_, _, err := w.store.SetTenant(t.Context(),
			rows.Change{Actor: "ann", Reason: "r"}, rows.Tenant{Tenant: c.tenant})
		if err == nil || !strings.Contains(err.Error(), c.field+": "+message) {
			t.Errorf("set a tenant with %s: %v, want %s: %s", name, err, c.field, message)
		}
		if c.field == "id" {
			continue // of the path, which is not a field
		}
		body, err := json.Marshal(c.tenant)
		require.NoError(t, err)
		faults := read[problem](w, w.want(w.as("PUT", acmePath, string(body)), http.StatusUnprocessableEntity)).Errors
		if len(faults) != 1 || faults[0].Location != "body."+c.field || !strings.HasPrefix(faults[0].Message, message) {
			t.Errorf("PUT %s: %+v, want %s: %s alone", body, faults, c.field, message)
		}
	}
}

func TestTheAPIAndTheDatabaseKeepEveryFieldOfAPolicy(t *testing.T) {
	t.Parallel()
	w := open(t)
	for _, p := range policytest.Full(t) {
		body, err := json.Marshal(p)
		require.NoError(t, err)
		written := w.want(w.as("POST", policies, string(body)), http.StatusCreated)
		got := read[rows.Policy](w, w.want(w.as("GET", written.Header().Get("Location"), ""), http.StatusOK))
		if !reflect.DeepEqual(got.Policy, p) {
			t.Errorf("%+v, want %+v", got.Policy, p)
		}
	}
}

func TestTheAPIAndTheDatabaseKeepEveryFieldOfAnOverride(t *testing.T) {
	t.Parallel()
	w := open(t)
	for _, o := range policytest.FullOverrides(t) {
		if o.Tenant == "" {
			continue // the API has the overrides of orgs
		}
		fields := fieldsOf(t, o)
		for _, name := range []string{"tenant", "author", "source"} { // those of the path and the caller
			delete(fields, name)
		}
		body, err := json.Marshal(fields)
		require.NoError(t, err)
		written := w.want(w.as("POST", overrides, string(body)), http.StatusCreated)
		got := read[api.Override](w, w.want(w.as("GET", written.Header().Get("Location"), ""), http.StatusOK))
		row, err := rows.Read[rows.Override](t.Context(), w.store, got.ID)
		require.NoError(t, err)
		row.StartsAt, row.ExpiresAt = row.StartsAt.UTC(), row.ExpiresAt.UTC()
		want := o
		want.Author = "token:ann"
		if row.Override != want {
			t.Errorf("%s\nis in the database %+v,\nwant               %+v", body, row.Override, want)
		}
		again := fieldsOf(t, got.Override)
		again["tenant"] = got.Org
		if wanted := fieldsOf(t, want); !reflect.DeepEqual(again, wanted) {
			t.Errorf("%s\nis read as %v,\nwant       %v", body, again, wanted)
		}
	}
}

// fieldsOf returns the fields of an override by their names.
func fieldsOf(t *testing.T, o schema.Override) (fields map[string]any) {
	t.Helper()
	raw, err := json.Marshal(o)
	require.NoError(t, err)
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	require.NoError(t, decoder.Decode(&fields))
	return fields
}
