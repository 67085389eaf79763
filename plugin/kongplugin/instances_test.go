package kongplugin

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestInstancesOfOneConfigShareItsPath(t *testing.T) {
	h := serve(t, plenty, nil)
	k := h.dial()
	first, second, other := k.startInstance(1, byConsumer), k.startInstance(2, byConsumer), k.startInstance(3, `{"tiers":[]}`)
	if h.instances.get(first).path != h.instances.get(second).path {
		t.Error("one config in two workers was compiled twice")
	}
	k.close(first)
	k.answers = answersOf(t, "key-auth")
	for _, id := range []int32{second, other} {
		if err := k.event(id); err != nil {
			t.Errorf("closing one instance touched another: %v", err)
		}
	}
	k.close(second)
	k.close(other)
	if got := h.paths.Load(); got != 0 {
		t.Errorf("%d paths are not released", got)
	}
	if r := h.instances; len(r.byID)+len(r.bySum)+len(r.live)+len(r.lastGood)+len(r.plugins) != 0 {
		t.Errorf("closed instances leave something behind: %+v", r)
	}
}

func TestAFaultyConfigIsAnsweredByTheLastGoodOneElseByOnConfigFault(t *testing.T) {
	h := serve(t, plenty, nil)
	k := h.dial()
	k.answers = answersOf(t, "key-auth")
	faulty := `{"tiers":[{"name":"a","limits":[{"name":"l","scope":"tenant","limit":-5,"window_size":0}]}]`

	open := k.startInstance(1, faulty+`}`)
	if err := k.event(open); err != nil || k.exit != nil || k.headers != nil {
		t.Errorf("without a good config: %v, exit %v, headers %v; want the request admitted", err, k.exit, k.headers)
	}
	line := h.log.await(t, "config has faults")
	for _, path := range []string{"tiers[0].limits[0].limit", "tiers[0].limits[0].window_size"} {
		if !strings.Contains(line, path) {
			t.Errorf("the log line does not name %s: %s", path, line)
		}
	}
	k.startInstance(2, faulty+`}`) // another worker: nothing new to tell
	k.close(open)
	k.close(2)

	good := k.startInstance(3, byConsumer)
	replacing := k.startInstance(4, faulty+`,"on_config_fault":"closed"}`)
	k.close(good)
	if err := k.event(replacing); err != nil || k.headers["X-RateLimit-Limit"] != "50" {
		t.Errorf("with a good config before: %v, headers %v; want it in force", err, k.headers)
	}
	h.log.await(t, "last good one stays in force")
	if got := h.paths.Load(); got != 1 {
		t.Errorf("%d paths are held, want the last good one", got)
	}
	k.close(replacing)
	if got := h.paths.Load(); got != 0 {
		t.Errorf("%d paths are not released", got)
	}

	closed := k.startInstance(5, faulty+`,"on_config_fault":"closed"}`)
	if err := k.event(closed); err != nil || k.exit == nil || k.exit.Status != 503 {
		t.Errorf("on_config_fault closed: %v, exit %v; want 503", err, k.exit)
	}
	if got := h.Counters().ConfigFaults.Load(); got != 3 {
		t.Errorf("%d config faults counted, want 3 configs", got)
	}
}

func TestTheLastGoodConfigIsTheOneThatWasStartedLast(t *testing.T) {
	h := serve(t, plenty, nil)
	k := h.dial()
	k.answers = answersOf(t, "key-auth")
	other := strings.Replace(byConsumer, `"limit":50`, `"limit":70`, 1)
	k.startInstance(1, byConsumer)
	k.startInstance(2, byConsumer) // another worker
	k.startInstance(3, other)
	k.startInstance(4, byConsumer) // taken back
	faulty := k.startInstance(5, `{"tears":[]}`)
	if err := k.event(faulty); err != nil || k.headers["X-RateLimit-Limit"] != "50" {
		t.Errorf("%v, headers %v; want the config that was taken back to", err, k.headers)
	}
}

func TestAPanicWhileAConfigCompilesIsAFaultOfIt(t *testing.T) {
	h := serve(t, plenty, func(o *Options) {
		o.Build = func(schema.Config, *policy.Plan) (*admit.Path, func(), error) { panic("a bug") }
	})
	k := h.dial()
	id := k.startInstance(1, strings.TrimSuffix(byConsumer, "}")+`,"on_config_fault":"closed"}`)
	if err := k.event(id); err != nil || k.exit == nil || k.exit.Status != 503 {
		t.Errorf("%v, exit %v; want 503, as on_config_fault says", err, k.exit)
	}
	h.log.await(t, "compiling a config panicked")
}

func TestAConfigThatIsNotJSONDoesNotFailTheStart(t *testing.T) {
	h := serve(t, plenty, nil)
	k := h.dial()
	for _, config := range []string{"", "{", "null", "[]", `{"__seq__":"x"}`, "\xff"} {
		if id := k.startRaw([]byte(config)); id == 0 {
			t.Errorf("config %q: no instance", config)
		} else if err := k.event(id); err != nil {
			t.Errorf("config %q: %v", config, err)
		}
	}
}

func TestTwoConfigsThatDefineOnePolicyDifferentlyAreToldOnce(t *testing.T) {
	h := serve(t, plenty, nil)
	k := h.dial()
	config := `{"tiers":[{"name":"a","limits":[{"name":"burst","scope":"tenant","limit":%d,"window_size":1}]}]}`
	k.startRaw([]byte(withSeq(1, "plugin-1", fmt.Sprintf(config, 5))))
	k.startRaw([]byte(withSeq(2, "plugin-1", fmt.Sprintf(config, 6)))) // a change of one plugin is no conflict
	for seq := 3; seq < 6; seq++ {
		k.startRaw([]byte(withSeq(seq, "plugin-2", fmt.Sprintf(config, 7))))
	}
	conflicts := 0
	for len(h.log.ch) > 0 {
		if line := <-h.log.ch; strings.Contains(line, "share its buckets") {
			conflicts++
			if !strings.Contains(line, "7 per 1 s") {
				t.Errorf("the line does not tell both definitions: %s", line)
			}
		}
	}
	if conflicts != 2 { // with each of the two live definitions of plugin-1
		t.Errorf("%d conflicts told, want 2", conflicts)
	}
	exact := strings.Replace(fmt.Sprintf(config, 7), `"window_size"`, `"accuracy":"exact","window_size"`, 1)
	k.startRaw([]byte(withSeq(6, "plugin-3", exact))) // some of its requests would be asked with another capacity
	h.log.await(t, "token_bucket) per tenant, exact in plugin plugin-3, 7 per 1 s (token_bucket) per tenant, leased in plugin plugin-2")
}

func TestConfigsWithoutASequenceOfTheirOwnGetInstancesOfTheirOwn(t *testing.T) {
	h := serve(t, plenty, nil)
	k := h.dial()
	k.answers = answersOf(t, "key-auth")
	// Kong sends 0 to every config when it cannot count, and the protocol takes 0 for absent.
	first, second := k.startRaw([]byte(withSeq(0, "p1", byConsumer))), k.startRaw([]byte(withSeq(0, "p2", byConsumer)))
	if first <= 0 || second <= 0 || first == second {
		t.Fatalf("the instances are %d and %d, want two ids above 0", first, second)
	}
	for _, id := range []int32{first, second} {
		if err := k.event(id); err != nil || k.headers["X-RateLimit-Limit"] != "50" {
			t.Errorf("instance %d: %v, headers %v", id, err, k.headers)
		}
	}
	if err := h.dial().event(0); err == nil {
		t.Error("an event that names no instance was answered")
	}
}
