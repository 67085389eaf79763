package wire

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestQuestionsAfterHeadersGetTheirOwnAnswers(t *testing.T) {
	h := serve(t, func(ctx context.Context, e *Event) error {
		e.SetHeaders([]Header{{Name: "X-First", Value: []byte("1")}})
		e.SetSerializeValue("note", Struct{}.Text("a", "b").Number("n", 1).Flag("f", true))
		return greet(ctx, e)
	}, nil)
	k := h.dial()
	k.Answers["kong.log.set_serialize_value=note"] = []byte("not the consumer")
	writes := h.writes()
	if err := k.Event(k.StartInstance(1, "{}")); err != nil || k.Headers["X-Consumer"] != alice {
		t.Errorf("%v, headers %v", err, k.Headers)
	}
	assert.Equal(t, []string{"kong.log.set_serialize_value=note", getConsumer}, k.Questions, "questions")
	assert.EqualValues(t, 3, h.writes()-writes, "writes") // the start of the instance is one
}

func TestNothingFollowsAnExit(t *testing.T) {
	var after error
	h := serve(t, func(ctx context.Context, e *Event) error {
		err := deny(ctx, e)
		_, after = consumerName(e)
		e.SetHeaders([]Header{{Name: "X-Late"}})
		e.Call("kong.log.set_serialize_value", nil)
		e.Exit(200, nil, nil)
		return err
	}, nil)
	k := h.dial()
	require.NoError(t, k.Event(k.StartInstance(1, "{}")))
	if k.Exit == nil || k.Exit.Status != 429 || !errors.Is(after, errExiting) {
		t.Errorf("exit %v, and a question after it: %v", k.Exit, after)
	}
}

func TestLocalIsKeptBetweenTheEventsOfAConnection(t *testing.T) {
	h := serve(t, func(_ context.Context, e *Event) error {
		n, _ := e.Local.(int) // 0 in the first event
		e.Local = n + 1
		e.SetHeaders([]Header{{Name: "X-N", Value: []byte(strings.Repeat("i", n+1))}})
		return nil
	}, nil)
	first, second := h.dial(), h.dial()
	id := first.StartInstance(1, "{}")
	for _, want := range []string{"i", "ii", "iii"} {
		if err := first.Event(id); err != nil || first.Headers["X-N"] != want {
			t.Errorf("%v, headers %v; want %q", err, first.Headers, want)
		}
	}
	if err := second.Event(id); err != nil || second.Headers["X-N"] != "i" {
		t.Errorf("%v, headers %v on another connection", err, second.Headers)
	}
}

func TestAPanicIsAnsweredByFaultElseTheRequestPasses(t *testing.T) {
	panics := func(_ context.Context, e *Event) error {
		e.SetHeaders([]Header{{Name: "X-Unsent"}})
		panic("a bug")
	}
	var fault func(*Event)
	h := serve(t, nil, func(o *Options) {
		o.Start = func(Config) Instance { return Instance{Access: panics, Fault: fault} }
	})
	k := h.dial()
	if err := k.Event(k.StartInstance(1, "{}")); err != nil || k.Exit != nil || k.Headers != nil {
		t.Errorf("without Fault: %v, exit %v, headers %v; want the request to pass", err, k.Exit, k.Headers)
	}
	fault = func(e *Event) { e.Exit(503, nil, nil) }
	if err := k.Event(k.StartInstance(2, "{}")); err != nil || k.Exit == nil || k.Exit.Status != 503 {
		t.Errorf("with Fault: %v, exit %v", err, k.Exit)
	}
	assert.EqualValues(t, 2, h.Counters().Panics, "panics counted")
}

func TestEveryInstanceIsClosedOnce(t *testing.T) {
	closed := map[string]int{}
	h := serve(t, nil, func(o *Options) {
		o.Start = func(c Config) Instance {
			return Instance{Access: pass, Close: func() { closed[c.PluginID+c.RouteID]++ }}
		}
	})
	k := h.dial()
	k.StartRaw([]byte(`{"__seq__":1,"__plugin_id":"first"}`))
	k.StartRaw([]byte(`{"__seq__":1,"__plugin_id":"second","route_id":"-route"}`)) // replaces the first
	assert.Equal(t, 1, h.Instances(), "instances")
	k.CloseInstance(1)
	k.CloseInstance(1) // Kong may repeat a call
	if closed["first"] != 1 || closed["second-route"] != 1 || h.Instances() != 0 {
		t.Errorf("closed %v, %d instances are left", closed, h.Instances())
	}
}

func TestCommonIsEqualForTheWorkersOfOneConfig(t *testing.T) {
	one := parseConfig([]byte(`{"__seq__":1,"a":[1],"__plugin_id":"p"}`))
	two := parseConfig([]byte(`{"a":[1],"__plugin_id":"p","__seq__":2}`))
	if string(one.Common) != string(two.Common) || one.id != 1 || two.id != 2 || one.PluginID != "p" {
		t.Errorf("%s and %s, ids %d and %d", one.Common, two.Common, one.id, two.id)
	}
	for _, text := range []string{"", "[]", `{"__seq__":"x","__plugin_id":7,"route_id":{}}`} {
		if c := parseConfig([]byte(text)); c.id != 0 || c.PluginID != "" || c.RouteID != "" {
			t.Errorf("%q: %+v; parts of a wrong type count as absent", text, c)
		}
	}
}
