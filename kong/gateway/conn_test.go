package gateway

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
)

func TestConnDrivesEventsWithoutHTTP(t *testing.T) {
	fake := newFakePlugin(t, func(e *fakeEvent) {
		answers, err := e.ask(
			question{"kong.client.get_consumer", nil}, question{"kong.request.get_header", encodeString("x-a")},
		)
		if err != nil {
			return
		}
		var consumer pb.Consumer
		if proto.Unmarshal(answers[0], &consumer) == nil && consumer.Username == "bad" {
			e.ask(exitWith(403, "", nil))
			return
		}
		value, _ := decodeString(answers[1])
		e.end(setHeadersCall(map[string]any{"X-Got": consumer.Username + " " + value}))
	})
	c, err := Dial(fake.socket())
	require.NoError(t, err)
	id, err := c.StartInstance("rec", []byte(`{"__seq__": 7}`))
	if err != nil || id != 7 {
		t.Fatalf("instance %d: %v", id, err)
	}
	request := Request{Header: http.Header{"X-A": {"v"}}, Consumer: &Consumer{Username: "ann"}}
	for range 3 {
		outcome, err := c.HandleEvent(id, "access", request)
		if err != nil || outcome.Exit != nil || outcome.Header["X-Got"][0] != "ann v" {
			t.Fatalf("outcome %+v: %v", outcome, err)
		}
	}
	if err := c.CloseInstance(99); err != nil {
		t.Error(err)
	}
	request.Consumer.Username = "bad"
	outcome, err := c.HandleEvent(id, "access", request)
	if err != nil || outcome.Exit == nil || outcome.Exit.Status != 403 {
		t.Errorf("outcome %+v: %v", outcome, err)
	}
	if n := c.node.counters; n.Questions() != 12 || n.starts.Load() != 1 || n.Closes() != 1 {
		t.Errorf("%d questions, %d starts, %d closes", n.Questions(), n.starts.Load(), n.Closes())
	}
}

func TestConnReturnsErrors(t *testing.T) {
	if _, err := Dial(t.TempDir() + "/none"); err == nil {
		t.Error("connected to a missing socket")
	}
	fake := newFakePlugin(t, (*fakeEvent).lose)
	c, err := Dial(fake.socket())
	require.NoError(t, err)
	defer c.Close()
	if _, err := c.HandleEvent(1, "access", Request{Target: "/%"}); err == nil {
		t.Error("a bad target was accepted")
	}
	if _, err := c.HandleEvent(1, "access", Request{}); err == nil {
		t.Error("an unknown instance was served")
	}
	if _, err := c.StartInstance("rec", nil); err == nil {
		t.Error("a lost connection still works")
	}
}

func TestConnDrivesBothPhasesOfARequest(t *testing.T) {
	var answers [][]byte
	fake := newFakePlugin(t, func(e *fakeEvent) {
		if e.name == accessPhase {
			e.end(question{"kong.ctx.shared.set", kv("id", "r-1")})
			return
		}
		var err error
		answers, err = e.ask(
			question{"kong.ctx.shared.get", encodeString("id")}, question{"kong.response.get_source", nil},
			question{"kong.response.get_header", encodeString("x-cost")}, question{"kong.log.serialize", nil},
		)
		if err == nil {
			e.end()
		}
	})
	c, err := Dial(fake.socket())
	require.NoError(t, err)
	defer c.Close()
	id, err := c.StartInstance("rec", []byte(`{"__seq__": 1}`))
	require.NoError(t, err)
	request := Request{Route: &Route{Service: &Service{Host: "up"}}}
	outcome, err := c.HandleEvent(id, "access", request)
	if err != nil || outcome.Shared["id"] != "r-1" {
		t.Fatalf("%+v, %v", outcome, err)
	}
	if _, err := c.HandleEvent(id, "log", request); err == nil {
		t.Error("a log event without a response was sent")
	}
	request.Shared = outcome.Shared
	request.Response = &Response{Status: 418, Source: "service", Header: http.Header{"X-Cost": {"7"}}}
	if _, err := c.HandleEvent(id, "log", request); err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, answer := range answers[1:] {
		text, err := decodeString(answer)
		require.NoError(t, err)
		texts = append(texts, text)
	}
	if !bytes.Equal(answers[0], encodeValue("r-1")) || texts[0] != "service" || texts[1] != "7" ||
		!strings.Contains(texts[2], `"upstream_status":"418"`) || !strings.Contains(texts[2], `"ip":"up"`) {
		t.Errorf("answers %q", answers)
	}
}
