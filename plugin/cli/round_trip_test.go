package cli

import (
	"reflect"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

func TestAFileOfPoliciesKeepsEveryFieldOfAPolicy(t *testing.T) {
	text := "policies: ["
	want := policytest.Full(t)
	for i, p := range want {
		text += string(appendPolicy(nil, pgstore.Policy{ID: 7, Policy: p, Revision: 3}))
		want[i].Namespace, want[i].Slot = "", "" // those of the file
	}
	var d document
	if err := d.read(strings.NewReader(text+"\n]"), "p.yaml"); err != nil {
		t.Fatal(err)
	}
	for i, p := range d.set.Policies {
		if !reflect.DeepEqual(p.Policy, want[i]) {
			t.Errorf("%+v, want %+v", p.Policy, want[i])
		}
	}
}
