package phase

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire/kongtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestInstancesOfOneConfigShareItsPath(t *testing.T) {
	h := serve(t, admitAll, nil)
	k := h.dial()
	first, second := k.StartInstance(1, byConsumer), k.StartInstance(2, byConsumer)
	other := k.StartInstance(3, `{"tiers":[]}`)
	got := h.paths.Load()
	assert.True(t, got == 2, "%d paths of 2 configs in 3 instances", got)
	k.CloseInstance(first)
	k.Answers = kongtest.AnswersOf(t, "key-auth")
	for _, id := range []int32{second, other} {
		assert.NoError(t, k.Event(id), "closing one instance touched another")
	}
	k.CloseInstance(second)
	k.CloseInstance(other)
	assert.Zero(t, h.paths.Load(), "paths are not released")
	if r := h.configs; len(r.instances)+len(r.bySum)+len(r.counts)+len(r.lastGood)+len(r.plugins) != 0 {
		t.Errorf("closed instances leave state behind: %+v", r)
	}
}

func TestAFaultyConfigIsReplacedByTheLastGoodOneOrAnsweredByOnConfigFault(t *testing.T) {
	h := serve(t, admitAll, nil)
	k := h.dial()
	k.Answers = kongtest.AnswersOf(t, "key-auth")
	faulty := `{"tiers":[{"name":"a","limits":[{"name":"l","scope":"tenant","limit":-5,"window_size":0}]}]`

	open := k.StartInstance(1, faulty+`}`)
	if err := k.Event(open); err != nil || k.Exit != nil || k.Headers != nil {
		t.Errorf("without a good config: %v, exit %v, headers %v; want the request admitted", err, k.Exit, k.Headers)
	}
	line := h.log.Await(t, "config has faults")
	for _, path := range []string{"tiers[0].limits[0].limit", "tiers[0].limits[0].window_size"} {
		assert.True(t, strings.Contains(line, path), "the log line does not name %s: %s", path, line)
	}
	k.StartInstance(2, faulty+`}`) // another worker: nothing new to log
	k.CloseInstance(open)
	k.CloseInstance(2)

	good := k.StartInstance(3, byConsumer)
	replacing := k.StartInstance(4, faulty+`,"on_config_fault":"closed"}`)
	k.CloseInstance(good)
	if err := k.Event(replacing); err != nil || k.Headers["X-RateLimit-Limit"] != "50" {
		t.Errorf("with a good config before: %v, headers %v; want it in force", err, k.Headers)
	}
	h.log.Await(t, "last good one stays in force")
	assert.EqualValues(t, 1, h.paths.Load(), "paths are held, want the last good one")
	k.CloseInstance(replacing)
	assert.Zero(t, h.paths.Load(), "paths are not released")

	closed := k.StartInstance(5, faulty+`,"on_config_fault":"closed"}`)
	if err := k.Event(closed); err != nil || k.Exit == nil || k.Exit.Status != 503 {
		t.Errorf("on_config_fault closed: %v, exit %v; want 503", err, k.Exit)
	}
	got := h.Counters().ConfigFaults
	assert.True(t, got == 3, "%d config faults counted, want 3 configs", got)
}

func TestTheLastGoodConfigIsTheOneThatWasStartedLast(t *testing.T) {
	h := serve(t, admitAll, nil)
	k := h.dial()
	k.Answers = kongtest.AnswersOf(t, "key-auth")
	other := strings.Replace(byConsumer, `"limit":50`, `"limit":70`, 1)
	k.StartInstance(1, byConsumer)
	k.StartInstance(2, byConsumer) // another worker
	k.StartInstance(3, other)
	k.StartInstance(4, byConsumer) // restored
	faulty := k.StartInstance(5, `{"tears":[]}`)
	if err := k.Event(faulty); err != nil || k.Headers["X-RateLimit-Limit"] != "50" {
		t.Errorf("%v, headers %v; want the config that was restored", err, k.Headers)
	}
}

func TestAPanicWhileAConfigCompilesIsAConfigFault(t *testing.T) {
	h := serve(t, admitAll, func(o *Options) {
		o.Build = func(schema.Config, *resolve.Plan) (*admit.Decider, func(), error) { panic("a bug") }
	})
	k := h.dial()
	id := k.StartInstance(1, strings.TrimSuffix(byConsumer, "}")+`,"on_config_fault":"closed"}`)
	if err := k.Event(id); err != nil || k.Exit == nil || k.Exit.Status != 503 {
		t.Errorf("%v, exit %v; want 503, as on_config_fault says", err, k.Exit)
	}
	h.log.Await(t, "compiling a config panicked")
}

func TestAConfigThatIsNotJSONDoesNotFailTheStart(t *testing.T) {
	h := serve(t, admitAll, nil)
	k := h.dial()
	for _, config := range []string{"", "{", "null", "[]", `{"__seq__":"x"}`, "\xff"} {
		if id := k.StartRaw([]byte(config)); id == 0 {
			t.Errorf("config %q: no instance", config)
		} else if err := k.Event(id); err != nil {
			t.Errorf("config %q: %v", config, err)
		}
	}
}

func TestTwoConfigsThatDefineOnePolicyDifferentlyAreLoggedOnce(t *testing.T) {
	h := serve(t, admitAll, nil)
	k := h.dial()
	config := `{"tiers":[{"name":"a","limits":[{"name":"burst","scope":"tenant","limit":%d,"window_size":1}]}]}`
	k.StartRaw([]byte(kongtest.WithSeq(1, "plugin-1", fmt.Sprintf(config, 5))))
	// A change of one plugin is no conflict.
	k.StartRaw([]byte(kongtest.WithSeq(2, "plugin-1", fmt.Sprintf(config, 6))))
	for seq := 3; seq < 6; seq++ {
		k.StartRaw([]byte(kongtest.WithSeq(seq, "plugin-2", fmt.Sprintf(config, 7))))
	}
	conflicts := 0
	for line := range strings.Lines(h.log.String()) {
		if strings.Contains(line, "share its buckets") {
			conflicts++
			assert.True(t, strings.Contains(line, "7 per 1 s"), "the line does not have both definitions: %s", line)
		}
	}
	assert.Equal(t, 2, conflicts, "conflicts logged") // with each of the two live definitions of plugin-1
	exact := strings.Replace(fmt.Sprintf(config, 7), `"window_size"`, `"accuracy":"exact","window_size"`, 1)
	k.StartRaw([]byte(kongtest.WithSeq(6, "plugin-3", exact))) // some of its requests would need another capacity
	h.log.Await(t, "token_bucket) per tenant, exact in plugin plugin-3, "+
		"7 per 1 s (token_bucket) per tenant, leased in plugin plugin-2")
}
