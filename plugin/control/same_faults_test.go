package control_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

func TestAFaultyPolicyHasTheSameFaultInTheAPIAndTheStoreAsInTheConfig(t *testing.T) {
	t.Parallel()
	w := open(t)
	for _, c := range policytest.Faulty(t, "../../schema/testdata/faulty_policies.json") {
		body := c.JSON(t)
		faults := map[string]bool{}
		for _, f := range read[problem](w, w.want(w.as("POST", policies, body), http.StatusUnprocessableEntity)).Errors {
			faults[f.Location+": "+f.Message] = true
		}
		if !faults["body."+c.Field+": "+c.Message] {
			t.Errorf("POST %s: %v, want %s: %s", body, faults, c.Field, c.Message)
		}
		var p pgstore.Policy
		if err := json.Unmarshal([]byte(body), &p); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(c.Message, "got 0") {
			continue // in a row of Go 0 is absent
		}
		_, _, err := w.store.PutPolicy(t.Context(), pgstore.Change{Actor: "ann", Reason: "r"}, p)
		if invalid := new(pgstore.InvalidError); !errors.As(err, &invalid) ||
			!strings.Contains(err.Error(), c.Field+": "+c.Message) {
			t.Errorf("put %s: %v, want %s: %s", body, err, c.Field, c.Message)
		}
	}
}
