package cli

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestAFileOfPoliciesKeepsEveryFieldOfAPolicy(t *testing.T) {
	text := "policies: ["
	want := policytest.Full(t)
	for i, p := range want {
		text += string(appendRow(nil, policySection.fields, &p))
		want[i].Namespace = "" // it is a field of the file
	}
	var d document
	require.NoError(t, d.read(strings.NewReader(text+"\n]"), "p.yaml"))
	for i, p := range d.set.Policies {
		if !reflect.DeepEqual(p.Policy, want[i]) {
			t.Errorf("%+v, want %+v", p.Policy, want[i])
		}
	}
}

func TestPoliciesAreMovedToAnotherDatabaseByAFileWithEveryField(t *testing.T) {
	postgres := pgtest.Shared(t)
	database := func() *terminal {
		return &terminal{t: t, env: map[string]string{databaseVariable: postgres.Database(t)}}
	}
	from, to := database(), database()
	for _, p := range policytest.Full(t) {
		from.stdin = "namespace: " + p.Namespace + "\npolicies: [" +
			string(appendRow(nil, policySection.fields, &p)) + "\n]"
		from.must("apply", "-f", "-", "--yes", "--force", "--partial", "--reason", "r")

		list := []string{"policy", "list", "--namespace", p.Namespace, "-o"}
		to.stdin = from.must(append(list, "yaml")...)
		to.must("apply", "-f", "-", "--yes", "--force", "--reason", "r")
		wrote, read := policiesOf(t, from.must(append(list, "json")...)), policiesOf(t, to.must(append(list, "json")...))
		if !reflect.DeepEqual(read, wrote) || len(read) == 0 || !reflect.DeepEqual(read[len(read)-1], p) {
			t.Errorf("the other database has %+v, want %+v, the last from %+v", read, wrote, p)
		}
	}
}

// policiesOf returns the policies that policy list shows, without what a database adds.
func policiesOf(t *testing.T, text string) (all []schema.Policy) {
	t.Helper()
	var listed []rows.Policy
	if err := json.Unmarshal([]byte(text), &listed); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	for _, p := range listed {
		all = append(all, p.Policy)
	}
	return all
}
