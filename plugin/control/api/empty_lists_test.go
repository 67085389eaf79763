package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// schemaNode holds the part of a schema that describes the lists of an answer.
type schemaNode struct {
	Ref        string                `json:"$ref"`
	Type       any                   `json:"type"` // a word, or a list of words
	Properties map[string]schemaNode `json:"properties"`
	Required   []string              `json:"required"`
}

// isList reports whether the schema describes a list, be it one that may be null.
func (n schemaNode) isList() bool { return strings.Contains(fmt.Sprint(n.Type), "array") }

// described holds the part of an OpenAPI document that describes which operations answer lists.
type described struct {
	Paths map[string]map[string]struct {
		ID        string `json:"operationId"`
		Responses map[string]struct {
			Content map[string]struct {
				Schema schemaNode `json:"schema"`
			} `json:"content"`
		} `json:"responses"`
	} `json:"paths"`
	Components struct {
		Schemas map[string]schemaNode `json:"schemas"`
	} `json:"components"`
}

// lists returns the dotted paths of the lists that every value of a schema has.
func (d described) lists(n schemaNode, at string) []string {
	if n.Ref != "" {
		n = d.Components.Schemas[path.Base(n.Ref)]
	}
	if n.isList() {
		return []string{at}
	}
	var found []string
	for _, name := range n.Required {
		found = append(found, d.lists(n.Properties[name], strings.TrimPrefix(at+"."+name, "."))...)
	}
	return found
}

// listed is an operation whose answer has lists.
type listed struct {
	id, path string
	lists    []string // where they are in its answer
}

// readsOfLists returns the operations that read lists, as the description has them.
func (d described) readsOfLists() []listed {
	var found []listed
	for at, methods := range d.Paths {
		o, ok := methods["get"]
		if !ok {
			continue
		}
		for _, content := range o.Responses["200"].Content {
			// Nothing was denied: no request has an answer.
			if lists := d.lists(content.Schema, ""); len(lists) > 0 && !strings.Contains(at, "{request_id}") {
				found = append(found, listed{o.ID, strings.ReplaceAll(at, "{org}", "acme"), lists})
			}
		}
	}
	slices.SortFunc(found, func(a, b listed) int { return strings.Compare(a.id, b.id) })
	return found
}

// valueAt returns what a document has at a dotted path, as JSON.
func valueAt(t *testing.T, document []byte, at string) string {
	t.Helper()
	value := json.RawMessage(document)
	for name := range strings.SplitSeq(at, ".") {
		var object map[string]json.RawMessage
		if at == "" {
			break
		}
		if err := json.Unmarshal(value, &object); err != nil {
			t.Fatalf("%s of %s: %v", at, document, err)
		}
		value = object[name]
	}
	return string(value)
}

// unlimited makes a server on an empty database, with a config that limits nothing, so that no list has an element.
func unlimited(t *testing.T) *world {
	t.Helper()
	return open(t, func(o *api.Options) {
		for _, add := range equipment {
			add(t, o)
		}
		config := plan()
		config.Tiers, config.Global = []schema.Tier{{Name: config.DefaultTier}}, schema.Global{}
		ruled(t, o.Decider, config, policy.Rows{})
	})
}

// A new list is in this test as soon as the server describes it.
func TestEveryListOfAnEmptyDatabaseIsAnEmptyListAndNeverNull(t *testing.T) {
	t.Parallel()
	w := unlimited(t)
	server := httptest.NewServer(w.server)
	defer server.Close()
	document := read[described](w, w.want(w.do(call{method: "GET", path: "/openapi.json"}), http.StatusOK))
	reads := document.readsOfLists()
	if !slices.ContainsFunc(reads, func(l listed) bool { return l.id == "list-audit" }) || len(reads) < 6 {
		t.Fatalf("the description has the lists %v, want at least six and the audit among them", reads)
	}
	// The lists of one webhook or candidate are read after those of all, of which there are none.
	ofOne := func(l listed) int { return strings.Count(l.path, "{id}") + strings.Count(l.path, "{name}") }
	slices.SortStableFunc(reads, func(a, b listed) int { return ofOne(a) - ofOne(b) })
	for _, list := range reads {
		if strings.Contains(list.path, "{name}") {
			w.as("POST", candidates, `{"name":"july","reason":"a test"}`) // the second time it is a conflict
			list.path = strings.Replace(list.path, "{name}", "july", 1)
		} else if ofOne(list) > 0 {
			base, rest, _ := strings.Cut(list.path, "/{id}")
			made := w.want(w.as("POST", base, hooked), http.StatusCreated)
			list.path = made.Header().Get("Location") + rest
		}
		status, body := fetch(t, server, list.path+samples[list.id].query)
		if status != http.StatusOK {
			t.Errorf("%s answers %d %s, want 200", list.id, status, body)
			continue
		}
		for _, at := range list.lists {
			if got := valueAt(t, body, at); got != "[]" {
				t.Errorf("%s: %q is %s, want []", list.id, at, got)
			}
		}
	}
}

// fetch reads a path over HTTP.
func fetch(t *testing.T, server *httptest.Server, at string) (int, []byte) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+at, http.NoBody)
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer "+admin)
	response, err := server.Client().Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	var body json.RawMessage
	if err := json.NewDecoder(response.Body).Decode(&body); err != nil {
		t.Fatalf("%s: %v", at, err)
	}
	return response.StatusCode, body
}

// Scripts join answers and records by these fields: policy is a name,
// policy_id the id of a row, and policy_version the version of all rows.
func TestALimitIsNamedAlikeInEveryAnswer(t *testing.T) {
	t.Parallel()
	rows := enterprise()
	rows.Policies = []policy.PolicyRow{{ID: 41, Policy: schema.Policy{Tenant: "acme", Limit: schema.Limit{
		Name: "rowed", Scope: "tenant", Limit: 1, WindowSize: 86400,
	}}}}
	p := planning(t, platform(), rows)
	for _, c := range []call{
		{admin, "POST", "/v1/ratelimit/check", `{"org_id":"acme"}`, nil},
		{admin, "POST", "/v1/ratelimit/check/batch", `{"checks":[{"org_id":"acme"}]}`, nil},
		{admin, "GET", "/v1/orgs/acme/ratelimit/policies", "", nil},
		{admin, "GET", "/v1/orgs/acme/ratelimit/usage", "", nil},
	} {
		body := p.want(p.do(c), http.StatusOK).Body.String()
		for _, want := range []string{`"policy":"rowed"`, `"policy":"daily"`, `"policy_id":41`, `"policy_version":7`} {
			if !strings.Contains(body, want) {
				t.Errorf("%s %s has no %s: %s", c.method, c.path, want, body)
			}
		}
		for _, not := range []string{`"policy_id":"`, `"policy_id":0`, `"row":`, `"policy_row"`} {
			if strings.Contains(body, not) {
				t.Errorf("%s %s has %s: %s", c.method, c.path, not, body)
			}
		}
	}
}
