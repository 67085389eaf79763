package admit_test

import (
	"context"
	"testing"

	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// told is the path of a config in YAML for requests that are told, with buckets and a diary of its own.
func told(t testing.TB, text string) (*admit.Path, *diary) {
	t.Helper()
	config := admit.ForKnown(parsed(t, text))
	if err := config.Validate(); err != nil {
		t.Fatalf("a config for known requests has faults: %v", err)
	}
	snapshot, err := policy.FromConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	written := new(diary)
	path := &admit.Path{Buckets: newShelf(), Renderer: response.New(config, nil), Observers: []admit.Observer{written}, FailClosed: config.OnInternalError == schema.FailClosed}
	path.Policies.Store(snapshot)
	return path, written
}

func TestARequestThatIsToldIsDecidedAsTheSameRequestThroughAGateway(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		text := config(
			"%tenant%", rapid.SampledFrom([]string{"limit_by_ip", "deny", "skip"}).Draw(rt, "on_missing_tenant"),
			"%user%", rapid.SampledFrom([]string{"credential", "ip", "skip", "deny"}).Draw(rt, "on_missing_user"),
			"%mode%", rapid.SampledFrom([]string{"enforce", "shadow"}).Draw(rt, "mode"),
		)
		throughGateway, _, byGateway := pathOf(t, text)
		knowing, byTelling := told(t, text)
		for range rapid.IntRange(1, 8).Draw(rt, "requests") {
			request := someRequest.Draw(rt, "request")
			known := &admit.Known{
				Tenant: request.Consumer.CustomID, User: request.Headers[0], Credential: request.CredentialID, IP: request.IP,
				Method: request.Method, Path: request.Path, ContentType: request.ContentType,
			}
			for _, tag := range request.Consumer.Tags {
				if len(tag) > 5 && tag[:5] == "tier:" {
					known.Tier = tag[5:]
				}
			}
			var a, b admit.Exchange
			if err := throughGateway.Admit(context.Background(), &gateway{request: request}, &a); err != nil {
				rt.Fatal(err)
			}
			if err := knowing.Admit(context.Background(), known, &b); err != nil {
				rt.Fatal(err)
			}
			if got, want := read(&b.Response), read(&a.Response); got != want {
				rt.Fatalf("client reads\n%s\nwant\n%s", got, want)
			}
		}
		for i := range *byGateway {
			if (*byTelling)[i] != (*byGateway)[i] {
				rt.Fatalf("decision %d is\n%s\nwant\n%s", i, (*byTelling)[i], (*byGateway)[i])
			}
		}
	})
}

func TestAskingAKnownRequestAllocatesNothing(t *testing.T) {
	path, _ := told(t, config())
	path.Observers = nil
	known := &admit.Known{Tenant: "acme", User: "u", Tier: "paid", IP: "192.0.2.1", Method: "POST", Path: "/records", Cost: 7}
	rules := &path.Policies.Load().Rules
	var request identity.Request
	if n := testing.AllocsPerRun(100, func() {
		request.Reset()
		if err := known.Read(context.Background(), rules.Wants, rules, &request); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%.0f allocations, want none", n)
	}
}

func TestATargetIsAMethodWithAPathOrARoute(t *testing.T) {
	for endpoint, want := range map[string][3]string{
		"POST /records/{id}": {"POST", "/records/{id}", ""},
		"* /":                {"*", "/", ""},
		"/records":           {"", "", "/records"},
		"search route":       {"", "", "search route"},
		"records":            {"", "", "records"},
		"":                   {},
	} {
		if method, path, route := admit.Target(endpoint); [3]string{method, path, route} != want {
			t.Errorf("%q is %q %q %q, want %q", endpoint, method, path, route, want)
		}
	}
}
