package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
)

const description = "../../../schema/openapi.yaml"

func TestThePublishedDescriptionIsThatOfTheServer(t *testing.T) {
	t.Parallel()
	w := open(t)
	got, err := w.server.OpenAPI()
	require.NoError(t, err)
	golden.Check(t, description, string(got))
	if served := w.want(w.do(call{method: "GET", path: "/openapi.yaml"}),
		http.StatusOK); !bytes.Equal(served.Body.Bytes(), got) {
		t.Error("/openapi.yaml is another one")
	}
}

// document holds the part of an OpenAPI document that these tests read.
type document struct {
	Paths map[string]map[string]struct {
		ID        string `json:"operationId"`
		Responses map[string]struct {
			Content map[string]struct {
				Schema json.RawMessage `json:"schema"`
			} `json:"content"`
		} `json:"responses"`
		RequestBody *struct {
			Content map[string]struct {
				Schema reference `json:"schema"`
			} `json:"content"`
		} `json:"requestBody"`
		Parameters []parameter           `json:"parameters"`
		Security   []map[string][]string `json:"security"`
	} `json:"paths"`
	Components struct {
		Schemas map[string]struct {
			Properties map[string]struct {
				Type any    `json:"type"`
				Ref  string `json:"$ref"`
			} `json:"properties"`
		} `json:"schemas"`
	} `json:"components"`
}

type reference struct {
	Ref string `json:"$ref"`
}

type parameter struct {
	Name   string `json:"name"`
	In     string `json:"in"`
	Schema struct {
		Type string `json:"type"`
	} `json:"schema"`
}

// operation is a described operation with a request that it accepts.
type operation struct {
	id, method, path string
	hasBody, secured bool
	codes            []string
}

// published has the description that describe has read. It is the same for all servers of these tests.
var published struct {
	sync.Mutex
	document document
	raw      []byte
}

func describe(w *world) (document, []byte) {
	w.Helper()
	published.Lock()
	defer published.Unlock()
	if published.raw == nil {
		a := w.want(w.do(call{method: "GET", path: "/openapi.json"}), http.StatusOK)
		published.document, published.raw = read[document](w, a), a.Body.Bytes()
	}
	return published.document, published.raw
}

// operations returns all described operations by their ids.
func operations(w *world) []operation {
	w.Helper()
	d, _ := describe(w)
	var list []operation
	for at, methods := range d.Paths {
		for method, o := range methods {
			list = append(list, operation{
				o.ID, strings.ToUpper(method), at, o.RequestBody != nil, len(o.Security) > 0,
				slices.Sorted(maps.Keys(o.Responses)),
			})
		}
	}
	slices.SortFunc(list, func(a, b operation) int { return strings.Compare(a.id, b.id) })
	return list
}

// sample holds the query and the body of a request; {id} in its path is replaced by the id of a scenario's row.
type sample struct{ query, body string }

// samples lists valid requests by operation. Without one a deletion has a reason, and a body is empty.
var samples = map[string]sample{
	"create-policy":    {body: daily},
	"put-policy":       {body: daily},
	"put-policy-by-id": {body: daily},
	"create-override":  {body: `{"kind":"ban","reason":"abuse","permanent":true}`},
	"put-override":     {body: `{"kind":"ban","reason":"abuse","permanent":true}`},
	"preview-override": {body: `{"kind":"ban","reason":"abuse","permanent":true}`},

	"create-general-override": {body: `{"kind":"exempt","tag":"monitoring","reason":"ours","permanent":true}`},
	"put-general-override":    {body: `{"kind":"exempt","tag":"monitoring","reason":"ours","permanent":true}`},

	"create-webhook":         {body: hooked},
	"create-general-webhook": {body: hooked},
	"create-org-token":       {body: `{"name":"july","expires_in":"90d"}`},
	"rotate-org-token":       {body: `{"overlap":"2h","reason":"a new laptop"}`},
	"create-token":           {body: `{"name":"july","role":"viewer","reason":"a test"}`},
	"list-denials":           {query: "?tenant=acme&policy=daily&since=24h"},
	"list-denial-groups":     {query: "?tenant=acme&policy=daily&last=7d"},
	"list-org-denial-groups": {query: "?policy=daily&last=7d"},
	"list-org-denials":       {query: "?policy=daily&since=24h"},
	"forget-node":            {body: `{"node":"edge-1","reason":"the machine is gone"}`},
	"forgive-org":            {body: `{"reason":"a load test"}`},
	"put-cost":               {body: ofExports},
	"put-price":              {body: coming},
	"put-tier":               {body: `{"description":"the best"}`},
	"put-org":                {body: `{"tier":"enterprise"}`},
	"diff-document":          {body: full},
	"apply-document":         {body: full},
	"reset-org-usage":        {body: `{"reason":"billed twice"}`},
	"export-usage":           {query: "?month=2026-11"},
	"check":                  {body: `{"org_id":"acme"}`},
	"check-batch":            {body: `{"checks":[{"org_id":"acme"}]}`},
	"settle":                 {body: `{"id":"chat-1","actual":5}`},

	"create-candidate":     {body: `{"name":"july","reason":"a test"}`},
	"put-candidate-policy": {body: strings.Replace(daily, "1000", "600", 1)},
	"put-candidate-policies": {body: `{"policies":[
		{"name":"daily","tier":"gold","scope":"tenant","limit":600,"window_size":86400}],"reason":"a test"}`},
	"delete-candidate-policy": {query: "?policy=daily&tier=gold&reason=over"},
	"assign-candidate":        {body: `{"percent":5,"add":["acme"],"reason":"a test"}`},
	"promote-candidate":       {body: why},
	"roll-back-candidate":     {body: why},
	"rebase-candidate":        {body: `{"version":1,"reason":"a test"}`},
}

// mostBody returns the bytes of a body that is too long.
func (o operation) mostBody() int {
	switch {
	case o.id == "put-candidate-policies", o.hasBody && strings.HasPrefix(o.path, documents):
		return 16 << 20
	case o.path == batch:
		return 1 << 20
	}
	return 64 << 10
}

// call returns a request for row 1 that the operation accepts.
func (o operation) call(token string) call {
	s := samples[o.id]
	if o.method == http.MethodDelete && s.query == "" {
		s.query = "?reason=over"
	}
	if o.hasBody && s.body == "" {
		s.body = `{}`
	}
	id := "1"
	if strings.Contains(o.id, "general") {
		id = "2" // fill makes it after the one of an org
	}
	at := strings.NewReplacer("{org}", "acme", "{id}", id, "{name}", "july", "{request_id}", requestID).Replace(o.path)
	return call{token: token, method: o.method, path: at + s.query, body: s.body}
}

func (c call) with(headers ...string) call {
	c.headers = append(slices.Clone(c.headers), headers...)
	return c
}

// contract checks answers against the description, and remembers which of its answers were seen.
type contract struct {
	*world
	compiler *jsonschema.Compiler
	document document
	missing  map[string]bool
}

func newContract(w *world) *contract {
	w.Helper()
	d, raw := describe(w)
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	require.NoError(w, err)
	c := &contract{world: w, compiler: jsonschema.NewCompiler(), document: d, missing: map[string]bool{}}
	c.compiler.DefaultDraft(jsonschema.Draft2020)
	c.compiler.AssertFormat()
	require.NoError(w, c.compiler.AddResource("openapi.json", parsed))
	for _, o := range operations(w) {
		for _, code := range o.codes {
			if code == "500" && !o.secured {
				continue // nothing that these ask for has a bug that a test could find
			}
			c.missing[o.id+" "+code] = true
		}
	}
	return c
}

// check validates an answer to an operation against what is described for its status.
func (c *contract) check(o operation, a answer) {
	c.Helper()
	code := strconv.Itoa(a.Code)
	described, ok := c.document.Paths[o.path][strings.ToLower(o.method)].Responses[code]
	if !ok {
		c.Errorf("%s answers %s, which is not described: %s", o.id, code, a.Body)
		return
	}
	delete(c.missing, o.id+" "+code)
	for kind := range described.Content {
		if got := a.Header().Get("Content-Type"); got != kind {
			c.Errorf("%s %s has type %q, want %s", o.id, code, got, kind)
		}
		escape := strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D", "+", "%2B")
		at := fmt.Sprintf("openapi.json#/paths/%s/%s/responses/%s/content/%s/schema", escape.Replace(o.path),
			strings.ToLower(o.method), code, escape.Replace(kind))
		schema, err := c.compiler.Compile(at)
		if err != nil {
			c.Fatalf("%s %s: %v", o.id, code, err)
		}
		value, err := jsonschema.UnmarshalJSON(a.Body)
		if err == nil {
			err = schema.Validate(value)
		}
		if err != nil {
			c.Errorf("%s %s: %v", o.id, code, err)
		}
	}
	if len(described.Content) == 0 && a.Body.Len() > 0 {
		c.Errorf("%s %s has a body, and none is described: %s", o.id, code, a.Body)
	}
}

// on returns the same contract with another server and the document of the first one.
func (c *contract) on(w *world) *contract {
	other := *c
	other.world = w
	return &other
}

// limitedAnswers asks all operations beyond the API's own limits.
func limitedAnswers(c *contract) {
	limited := c.on(equipped(c.T, func(o *api.Options) {
		o.Limits, o.Rates = memory.New(memory.Options{Now: clock}), api.Rates{Requests: 1, Decisions: 1}
	}))
	all := operations(c.world)
	answers := make([][2]answer, len(all)) // a denied request waits for its answer
	var group sync.WaitGroup
	for i, o := range all {
		for n := range 2 {
			group.Go(func() { answers[i][n] = limited.do(o.call(viewer)) })
		}
	}
	group.Wait()
	for i, o := range all {
		for _, a := range answers[i] {
			if a.Code == http.StatusTooManyRequests {
				limited.check(o, a)
			}
		}
	}
}

// wantAll fails for each answer that is described and was not given.
func (c *contract) wantAll() {
	for _, what := range slices.Sorted(maps.Keys(c.missing)) {
		c.Errorf("described, but never given: %s", what)
	}
}

// everyAnswer asks for the answers that every operation has.
func everyAnswer(c *contract, o operation) {
	c.check(o, c.do(o.call(admin).with("Accept", "text/html")))
	if !o.secured {
		c.check(o, c.do(o.call("")))
		return
	}
	c.check(o, c.do(o.call("")))
	c.check(o, c.do(o.call(panics)))
	c.check(o, c.do(o.call(ofGlobex)))
	unknown := o.call(admin)
	unknown.path += map[bool]string{true: "&", false: "?"}[strings.Contains(unknown.path, "?")] + "surprise=1"
	if a := c.do(unknown); a.Code != http.StatusUnprocessableEntity {
		c.Errorf("%s with an unknown query parameter: %d, want 422", o.id, a.Code)
	} else {
		c.check(o, a)
	}
	if o.hasBody {
		everyRefusedBody(c, o)
	}
}

// everyRefusedBody asks for the answers to bodies that no operation takes.
func everyRefusedBody(c *contract, o operation) {
	slow := o.call(admin).request()
	slow.Body = io.NopCloser(iotest.ErrReader(os.ErrDeadlineExceeded))
	recorder := httptest.NewRecorder()
	c.server.ServeHTTP(recorder, slow)
	c.check(o, answer{recorder, o.call(admin)})
	for _, test := range []struct {
		code    int
		body    string
		headers []string
	}{
		{http.StatusBadRequest, `{"limit":`, nil},
		{http.StatusBadRequest, "{\"reason\":\"\xff\"}", nil},
		{http.StatusBadRequest, `{"reason":"a","reason":"b"}`, nil},
		{http.StatusBadRequest, strings.Repeat("[", 10_000), nil},
		{http.StatusRequestEntityTooLarge, strings.Repeat(" ", o.mostBody()), nil},
		{http.StatusUnsupportedMediaType, `limit: 1`, []string{"Content-Type", "application/yaml"}},
		{http.StatusUnprocessableEntity, `[]`, nil},
		{http.StatusUnprocessableEntity, `{"surprise":1}`, nil},
		{http.StatusUnprocessableEntity, `null`, nil},
	} {
		request := o.call(admin).with(test.headers...)
		request.body = test.body
		a := c.do(request)
		if a.Code != test.code {
			c.Errorf("%s with %.40q: %d %s, want %d", o.id, test.body, a.Code, a.Body, test.code)
		}
		c.check(o, a)
	}
}

func TestEveryDescribedValueOfAWrongTypeIsAFaultWithItsPath(t *testing.T) {
	t.Parallel()
	w := open(t)
	d, _ := describe(w)
	for _, o := range operations(w) {
		described := d.Paths[o.path][strings.ToLower(o.method)]
		for _, p := range described.Parameters {
			if p.In == "query" && p.Schema.Type != "string" && p.Schema.Type != "array" {
				wrong := o.call(admin)
				wrong.path, _, _ = strings.Cut(wrong.path, "?")
				wrong.path += "?" + p.Name + "=word"
				deniedAt(w, wrong, "query."+p.Name)
			}
		}
		if described.RequestBody == nil {
			continue
		}
		name := path.Base(described.RequestBody.Content["application/json"].Schema.Ref)
		properties := d.Components.Schemas[name].Properties
		if len(properties) == 0 || o.call(admin).body == "" {
			t.Errorf("%s: its body has %d properties, and as a sample %q", o.id, len(properties), o.call(admin).body)
			continue
		}
		for property, schema := range properties {
			wrong := o.call(admin)
			body := map[string]any{}
			if err := json.Unmarshal([]byte(wrong.body), &body); err != nil {
				t.Fatalf("%s: %v", o.id, err)
			}
			body[property] = map[string]any{"surprise": 1}
			if schema.Type == "object" || schema.Ref != "" {
				body[property] = "surprise"
			}
			raw, err := json.Marshal(body)
			require.NoError(t, err)
			wrong.body = string(raw)
			deniedAt(w, wrong, "body."+property)
		}
	}
}
