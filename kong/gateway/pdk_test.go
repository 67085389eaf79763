package gateway

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	pdk "github.com/Kong/go-pdk"
)

const pdkConfig = `
services:
- name: echo
  host: echo.internal
  tags: [st]
  routes:
  - {name: re, paths: ['~/u/\d+'], tags: [rt], plugins: [{name: rec}, {name: key-auth, config: {anonymous: guest}}]}
consumers:
- {id: 7baf6fdd-1e81-50d7-9210-1de7506a64ec, username: guest, tags: [t]}
`

func TestTheClientOfGoPDKReadsTheAnswers(t *testing.T) {
	got := map[string]string{}
	fake := newFakePlugin(t, func(e *fakeEvent) {
		askAll(pdk.Init(e.conn), func(name string, value any, err error) {
			got[name] = fmt.Sprint(value, " ", err)
		})
		e.end()
	})
	g := start(t, Options{
		Config: deckConfig(t, pdkConfig), TrustedIPs: []string{"127.0.0.1"},
		Servers: []PluginServer{{Info: recInfo(t), Socket: fake.socket()}},
	})
	response := send(t, g, "POST /u/42/%7Ex?a=1 HTTP/1.1",
		"Host: Api.test:99", "X-Real-IP: 9.9.9.9", "X-Two: 1", "X-Two: 2")
	if response.status != 200 || strings.Join(response.named("x-c"), "|") != "x-c: 3" ||
		len(response.named("Transfer-Encoding")) != 0 {
		t.Fatalf("status %d %q: %s", response.status, response.lines, response.body)
	}
	for name, want := range map[string]string{
		"host": "api.test <nil>", "path": "/u/42/~x <nil>", "target": "/u/42/%7Ex?a=1 <nil>", "method": "POST <nil>",
		"two": "1 <nil>", "twos": "[1 2] <nil>", "ip": "127.0.0.1 <nil>", "fip": "9.9.9.9 <nil>", "node": nodeID + " <nil>",
		"consumer": "guest [t] <nil>", "credential": " <nil>", "shared": "kept 1.5 <nil>", "ctx": "7 <nil>",
		"route": "re [rt] <nil>", "service": "echo 60000 [st] <nil>", "var": "POST /u/42/%7Ex?a=1 HTTP/1.1 <nil>",
	} {
		if got[name] != want {
			t.Errorf("%s: %q, want %q", name, got[name], want)
		}
	}
}

// askAll calls every simulated method that go-pdk has and passes the answers to record.
func askAll(k *pdk.PDK, record func(string, any, error)) {
	for name, ask := range map[string]func() (string, error){
		"host": k.Request.GetHost, "path": k.Request.GetPath, "target": k.Request.GetPathWithQuery,
		"method": k.Request.GetMethod, "ip": k.Client.GetIp, "fip": k.Client.GetForwardedIp, "node": k.Node.GetId,
		"two": func() (string, error) { return k.Request.GetHeader("x-two") },
		"var": func() (string, error) { return k.Nginx.GetVar("request") },
	} {
		value, err := ask()
		record(name, value, err)
	}
	headers, err := k.Request.GetHeaders(100)
	record("twos", headers["x-two"], err)
	consumer, err := k.Client.GetConsumer()
	record("consumer", fmt.Sprint(consumer.Username, " ", consumer.Tags), err)
	credential, err := k.Client.GetCredential()
	record("credential", credential.Id, err)
	err = errors.Join(k.Ctx.SetShared("text", "kept"), k.Ctx.SetShared("number", 1.5))
	record("set shared", "", err)
	text, _ := k.Ctx.GetSharedString("text")
	number, err := k.Ctx.GetSharedFloat("number")
	record("shared", fmt.Sprint(text, " ", number), err)
	record("set ctx", "", k.Nginx.SetCtx("n", 7))
	n, err := k.Nginx.GetCtxFloat("n")
	record("ctx", n, err)
	route, err := k.Router.GetRoute()
	record("route", fmt.Sprint(route.Name, " ", route.Tags), err)
	service, err := k.Router.GetService()
	record("service", fmt.Sprint(service.Name, " ", service.ReadTimeout, " ", service.Tags), err)
	err = k.Response.SetHeaders(map[string][]string{"Transfer-Encoding": {"gzip"}, "x-c": {"3"}})
	record("set headers", "", err)
}

func TestBytesThatAreNotUTF8PassUnchanged(t *testing.T) {
	g, _ := withFake(t, oneRoute, func(e *fakeEvent) {
		answers, err := e.ask(question{"kong.request.get_header", encodeString("x-raw")})
		if err != nil {
			return
		}
		raw, _ := decodeString(answers[0])
		e.end(setHeadersCall(map[string]any{"X-Raw": raw}))
	})
	got := send(t, g, "GET / HTTP/1.1", "Host: h", "X-Raw: a\xff\xfe")
	if lines := got.named("x-raw"); len(lines) != 1 || lines[0] != "X-Raw: a\xff\xfe" {
		t.Errorf("lines %q", lines)
	}
}

func TestASpoofedHeaderIsReadAsByARealKong(t *testing.T) {
	junk := make([]string, 110)
	for i := range junk {
		junk[i] = fmt.Sprintf("A-%03d: junk", i)
	}
	for _, test := range []struct {
		name             string
		lines            []string
		header, variable string
	}{
		{"one line", []string{"X-Org: real"}, "real", "real"},
		{"the underscored twin alone", []string{"X_Org: evil"}, "evil", "evil"},
		{"both", []string{"X_Org: evil", "X-Org: real"}, "real", "real, evil"},
		{"two lines", []string{"X-Org: evil", "X-Org: real"}, "evil", "evil, real"},
		{"both among 110 others", append([]string{"X_Org: evil", "X-Org: real"}, junk...), "", "real, evil"},
		{"one line among 110 others", append([]string{"X-Org: real"}, junk...), "real", "real"},
		{"a comma", []string{"X-Org: a, b"}, "a, b", "a, b"},
		{"a comma among 110 others", append([]string{"X-Org: a, b"}, junk...), "", "a, b"},
		{"none", nil, "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var header, variable string
			g, _ := withFake(t, oneRoute, func(e *fakeEvent) {
				answers, err := e.ask(
					question{"kong.request.get_header", encodeString("x-org")},
					question{"kong.nginx.get_var", encodeString("http_x_org")},
				)
				if err != nil {
					return
				}
				header, _ = decodeString(answers[0])
				variable, _ = decodeString(answers[1])
				e.end()
			})
			if got := send(t, g, append([]string{"GET / HTTP/1.1", "Host: h"}, test.lines...)...); got.status != 200 {
				t.Fatalf("status %d", got.status)
			}
			if header != test.header || variable != test.variable {
				t.Errorf("get_header %q, get_var %q; want %q and %q", header, variable, test.header, test.variable)
			}
		})
	}
}

func FuzzPDKArguments(f *testing.F) {
	n := &node{log: (&logLines{}).logger(), counters: &Counters{}}
	names := make([]string, 0, len(pdkMethods))
	for name := range pdkMethods {
		names = append(names, name)
	}
	f.Add([]byte{0x0a, 1, 'x'})
	f.Add(encodeStruct(map[string]any{"a": []any{"b", nil, 1.0, true, map[string]any{}}}))
	f.Fuzz(func(_ *testing.T, arg []byte) {
		for _, name := range names {
			x, _ := newExchange(n, Request{})
			x.answer(name, arg)
		}
	})
}
