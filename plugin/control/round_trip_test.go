package control_test

import (
	"encoding/json"
	"net/http"
	"reflect"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

func TestTheAPIAndTheDatabaseKeepEveryFieldOfAPolicy(t *testing.T) {
	t.Parallel()
	w := open(t)
	for _, p := range policytest.Full(t) {
		body, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		written := w.want(w.as("POST", policies, string(body)), http.StatusCreated)
		got := read[pgstore.Policy](w, w.want(w.as("GET", written.Header().Get("Location"), ""), http.StatusOK))
		if !reflect.DeepEqual(got.Policy, p) {
			t.Errorf("%+v, want %+v", got.Policy, p)
		}
	}
}
