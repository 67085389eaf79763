package api_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const (
	prices = "/v1/ratelimit/prices"
	coming = `{"model":"gpt-4o*","prompt":"2.50","completion":"10","starts_at":"2099-01-01T00:00:00Z"}`
)

func TestAPriceIsSetReadListedAndDeletedWithItsETag(t *testing.T) {
	t.Parallel()
	w := open(t)
	made := w.want(w.as("PUT", prices, coming), http.StatusCreated)
	path, tag := made.Header().Get("Location"), made.Header().Get("ETag")
	row := read[struct{ Price rows.Price }](w, made).Price
	if path != fmt.Sprint(prices, "/", row.ID) || row.Prompt != 2_500_000 || row.State != rows.StateScheduled {
		t.Errorf("made %s at %s", made.Body, path)
	}
	got := w.want(w.as("GET", path, ""), http.StatusOK)
	w.want(w.as("GET", path, "", "If-None-Match", tag), http.StatusNotModified)
	w.want(w.as("PUT", prices, got.Body.String()), http.StatusOK) // what is read can be written
	const dearer = `{"model":"gpt-4o*","prompt":"3","completion":"10","starts_at":"2099-01-01T01:00:00+01:00"}`
	w.want(w.as("PUT", prices, dearer), http.StatusPreconditionRequired)
	changed := w.want(w.as("PUT", prices, dearer, "If-Match", tag), http.StatusOK)
	require.Equal(t, row.ID, read[struct{ Price rows.Price }](w, changed).Price.ID)

	// One without a start begins now, beside those before it, and needs no condition.
	const now = `{"model":"gpt-4o*","prompt":"2","completion":"8"}`
	const cheaper = `{"model":"gpt-4o*","prompt":"1","completion":"8"}`
	first := w.want(w.as("PUT", prices, now), http.StatusCreated)
	again := w.want(w.as("PUT", prices, now), http.StatusOK)
	require.Equal(t, first.Header().Get("ETag"), again.Header().Get("ETag"), "the price was in force already")
	w.want(w.as("PUT", prices, cheaper), http.StatusCreated)
	list := read[struct{ Items []rows.Price }](w, w.want(w.as("GET", prices+"?state=in_force", ""), http.StatusOK))
	if len(list.Items) != 1 || list.Items[0].Prompt != 1_000_000 {
		t.Errorf("in force are %+v, want the last one", list.Items)
	}
	w.want(w.as("DELETE", path+"?reason=r", "", "If-Match", tag), http.StatusPreconditionFailed)
	w.want(w.as("DELETE", path+"?reason=r", "", "If-Match", changed.Header().Get("ETag")), http.StatusOK)
	w.want(w.as("GET", path, ""), http.StatusNotFound)
}

func TestAPriceThatIsNoneIsAFaultOfItsField(t *testing.T) {
	t.Parallel()
	w := open(t)
	for fields, want := range map[string]string{
		`"prompt":"-1","completion":"1"`:                    "prompt",
		`"prompt":-1,"completion":"1"`:                      "prompt",
		`"prompt":"1","completion":"100000000000000000000"`: "completion",
		`"prompt":"0.1234567","completion":"1"`:             "prompt",
		`"prompt":"1","completion":true`:                    "completion",
		`"prompt":null,"completion":"1"`:                    "prompt",
		`"prompt":"1"`:                                      "completion",
		`"prompt":"1","completion":"1","currency":"EUR"`:    "currency",
		`"prompt":"1","completion":"1","namespace":" "`:     "namespace",
		`"prompt":"1","completion":"1","starts_at":"soon"`:  "starts_at",
	} {
		w.wantFaults(w.as("PUT", prices, `{"model":"a",`+fields+`}`), "body."+want)
	}
	const start = `,"starts_at":"2026-01-01T00:00:00Z"}`
	const one = `{"model":"a","prompt":"1","completion":"1"` + start
	for list, want := range map[string]string{
		one + `,{"model":"b","prompt":"1","completion":"0.1234567"` + start: "body.prices[1].completion",
		`{"model":"a","prompt":"1"` + start:                                 "body.prices[0].completion",
		`{"model":"a","prompt":"1","completion":"1"}`:                       "body.prices[0].starts_at",
		one + "," + one: "body",
	} {
		w.wantFaults(w.as("PUT", documents, `{"prices":[`+list+`]}`), want)
	}
}
