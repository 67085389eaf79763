package api_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"reflect"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

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
		body := overrideJSON(t, fields)
		written := w.want(w.as("POST", overrides, body), http.StatusCreated)
		got := read[api.Override](w, w.want(w.as("GET", written.Header().Get("Location"), ""), http.StatusOK))
		row, err := w.store.Override(t.Context(), got.ID)
		require.NoError(t, err)
		row.StartsAt, row.ExpiresAt = row.StartsAt.UTC(), row.ExpiresAt.UTC()
		want := o
		want.Author = "token:ann"
		if row.Override != want {
			t.Errorf("%s\nis in the database %+v,\nwant               %+v", body, row.Override, want)
		}
		again := fieldsOf(t, got.Override)
		again["tenant"] = got.Org
		if got.Factor != nil {
			again["factor"] = json.Number(strconv.FormatInt(int64(*got.Factor), 10))
		}
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
