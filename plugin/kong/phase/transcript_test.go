package phase

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire/kongtest"
)

func TestQuestionsEqualTheRecordedBytes(t *testing.T) {
	recordedArguments := map[string][]byte{}
	for _, line := range kongtest.Transcript(t) {
		if question, ok := strings.CutPrefix(line.Label, "args of "); ok {
			recordedArguments[question] = line.Frame
		}
	}
	ours := append(slices.Clone(questions), newHeaderQuestions([]string{"X-User-Id", "No-Such-Header"})...)
	compared := 0
	for _, q := range ours {
		size := binary.LittleEndian.Uint32(q.ask)
		arguments := q.ask[8+size:]
		name := kongtest.QuestionName(q.ask[4:4+size], arguments)
		if name == "kong.request.get_header=content-type" {
			continue // not recorded; the other headers are
		}
		want, ok := recordedArguments[name]
		if variable, isVariable := strings.CutPrefix(name, "kong.nginx.get_var="); isVariable && !ok {
			// A header's variable was not recorded: the question differs from a recorded one in its name alone.
			request := recordedArguments["kong.nginx.get_var=request"]
			want, ok = append([]byte{request[0], byte(len(variable))}, variable...), len(request) == 2+len("request")
		}
		assert.True(t, ok && bytes.Equal(arguments, want), "%s: arguments %x, recorded %x (%t)", name, arguments, want, ok)
		compared++
	}
	assert.Equal(t, 11, compared, "compared %d questions, want 11", compared)
}

func TestRecordedAnswersIdentifyTheRequest(t *testing.T) {
	const config = `{"tenant_from":["consumer.tag.org"],"user_from":["jwt.sub","header.X-User-Id"],
		"tier_from":["jwt.tier","consumer.tag.tier"],"trusted_headers":["x-user-id"],
		"tiers":[{"name":"essentials"},{"name":"enterprise","limits":[
		{"name":"u","scope":"user+endpoint","limit":9,"window_size":1},
		{"name":"p","scope":"tenant+endpoint","endpoint":"GET /authed/records/{id}","limit":9,"window_size":1}]}],
		"anonymous":{"limits":[{"name":"ip","scope":"ip","limit":9,"window_size":1}]}}`
	tenant := policy.Key{Namespace: "default", Group: policy.ByTenant, GroupID: "acme"}
	user := tenant
	user.Policy, user.Kind, user.Subject = "u", policy.KindUser, "u_42"
	authed, jwt, endpoint := user, user, tenant
	authed.Endpoint, jwt.Endpoint = "authed", "jwt"
	endpoint.Policy, endpoint.Endpoint = "p", "GET /authed/records/{id}"
	anonymous := policy.Key{Namespace: "default", Policy: "ip", Group: policy.ByIP, GroupID: "127.0.0.1"}
	for name, want := range map[string][]policy.Key{
		"key-auth":           {authed, endpoint},
		"jwt":                {jwt},
		"key-auth-anonymous": {anonymous},
		"no-auth":            {anonymous},
	} {
		var got []policy.Key
		h := serve(t, func(bounds []policy.Bound, statuses []decision.Status) error {
			for _, b := range bounds {
				got = append(got, b.Key)
			}
			return admitAll(bounds, statuses)
		}, nil)
		k := h.dial()
		k.Answers = kongtest.AnswersOf(t, name)
		require.NoError(t, k.Event(k.StartInstance(1, config)))
		assert.Equal(t, want, got, "%s", name)
	}
}

func FuzzDecodeAnswers(f *testing.F) {
	for _, line := range kongtest.Transcript(f) {
		if strings.HasPrefix(line.Label, "answer of ") {
			f.Add(line.Frame)
		}
	}
	all := append(slices.Clone(questions), newHeaderQuestions([]string{"A"})...)
	interner := wire.NewInterner()
	f.Fuzz(func(t *testing.T, answer []byte) {
		req := identity.Request{Headers: make([]string, 1)}
		for _, q := range all {
			err := q.decode(answer, interner, &req)
			assert.True(t, err == nil || err == wire.ErrMalformed, "%x: %v", answer, err)
		}
		var want kongtest.Consumer
		if proto.Unmarshal(answer, &want) == nil &&
			(req.Consumer.ID != want.Id || req.Consumer.Username != want.Username ||
				req.Consumer.CustomID != want.CustomId || !slices.Equal(req.Consumer.Tags, want.Tags)) {
			t.Errorf("%x: consumer %+v, want %v", answer, req.Consumer, &want)
		}
	})
}
