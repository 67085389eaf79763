package gateway

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	pdk "github.com/Kong/go-pdk"
)

const pdkConfig = `
services:
- name: echo
  host: echo.internal
  tags: [st]
  routes:
  - {name: re, paths: ['~/u/(?<id>\d+)'], tags: [rt], plugins: [{name: rec}, {name: key-auth, config: {anonymous: nobody}}]}
consumers:
- {id: 7baf6fdd-1e81-50d7-9210-1de7506a64ec, username: nobody, tags: [t]}
`

// runPDK runs one request through a plugin that uses go-pdk's own client.
func runPDK(t *testing.T, options Options, lines []string, plugin func(*pdk.PDK)) answer {
	t.Helper()
	fake := newFakePlugin(t, func(e *fakeEvent) {
		plugin(pdk.Init(e.conn))
		e.end()
	})
	options.Config = deckConfig(t, pdkConfig)
	options.Servers = []PluginServer{{Info: recInfo(t), Socket: fake.socket()}}
	return send(t, started(t, options), lines...)
}

func TestGoPDKsOwnClientReadsTheAnswers(t *testing.T) {
	got := map[string]string{}
	note := func(name string, value any, err error) { got[name] = strings.TrimSpace(fmt.Sprint(value, " ", err)) }
	body := strings.Repeat("b", 20)
	response := runPDK(t, Options{TrustedIPs: []string{"127.0.0.1"}, RealIPHeader: "X-Forwarded-For"}, []string{
		"POST /u/42/%7Ex?a=1&a=2&b=c%20d HTTP/1.1", "Host: Api.test:99", "X-Forwarded-For: 9.9.9.9",
		"X-Forwarded-Proto: HTTPS", "X-Forwarded-Host: u@Front.test:444", "X-Two: 1", "X-Two: 2", "Content-Length: 20", "", body,
	}, func(k *pdk.PDK) {
		askRequest(k, note)
		askOthers(k, note)
	})
	if response.status != 200 {
		t.Fatalf("status %d: %s", response.status, response.body)
	}
	for name, want := range map[string]string{
		"scheme": "http <nil>", "host": "api.test <nil>", "fscheme": "https <nil>", "fhost": "front.test <nil>",
		"fport": "444 <nil>", "version": "1.1 <nil>", "raw query": "a=1&a=2&b=c%20d <nil>", "arg": "1 <nil>",
		"query": "map[a:[1 2] b:[c d]] <nil>", "two": "1 <nil>", "twos": "[1 2] <nil>", "body": body + " <nil>",
		"captures": "[42] 42 <nil>", "ip": "127.0.0.1 <nil>", "fip": "9.9.9.9 <nil>", "trusted": "true <nil>",
		"protocol": "http <nil>", "consumer": "nobody [t] <nil>", "by id": "nobody <nil>", "credential": "<nil>",
		"shared": "kept 1.5 <nil>", "ctx": "7 <nil>", "subsystem": "http <nil>", "tls": "<nil>",
		"route": "re [rt] <nil>", "service": "echo 60000 [st] <nil>", "memory": "5242880 <nil>", "var": "9.9.9.9 <nil>",
		"cookie": "<nil>", "arg var": "c%20d <nil>",
	} {
		if got[name] != want {
			t.Errorf("%s: %q, want %q", name, got[name], want)
		}
	}
}

func askRequest(k *pdk.PDK, note func(string, any, error)) {
	for name, ask := range map[string]func() (string, error){
		"scheme": k.Request.GetScheme, "host": k.Request.GetHost, "fscheme": k.Request.GetForwardedScheme,
		"fhost": k.Request.GetForwardedHost, "raw query": k.Request.GetRawQuery,
		"arg": func() (string, error) { return k.Request.GetQueryArg("a") },
		"two": func() (string, error) { return k.Request.GetHeader("x-two") },
		"ip":  k.Client.GetIp, "fip": k.Client.GetForwardedIp, "subsystem": k.Nginx.GetSubsystem, "tls": k.Nginx.GetTLS1VersionStr,
		"protocol": func() (string, error) { return k.Client.GetProtocol(false) },
		"var":      func() (string, error) { return k.Nginx.GetVar("remote_addr") },
		"cookie":   func() (string, error) { return k.Nginx.GetVar("cookie_x") },
		"arg var":  func() (string, error) { return k.Nginx.GetVar("arg_b") },
	} {
		value, err := ask()
		note(name, value, err)
	}
	port, err := k.Request.GetForwardedPort()
	note("fport", port, err)
	version, err := k.Request.GetHttpVersion()
	note("version", version, err)
	query, err := k.Request.GetQuery(10)
	note("query", query, err)
	headers, err := k.Request.GetHeaders(100)
	note("twos", headers["x-two"], err)
	body, err := k.Request.GetRawBody()
	note("body", string(body), err)
	unnamed, named, err := k.Request.GetUriCaptures()
	note("captures", fmt.Sprintf("%s %s", unnamed, named["id"]), err)
}

func askOthers(k *pdk.PDK, note func(string, any, error)) {
	trusted, err := k.IP.IsTrusted("127.0.0.1")
	note("trusted", trusted, err)
	consumer, err := k.Client.GetConsumer()
	note("consumer", fmt.Sprint(consumer.Username, " ", consumer.Tags), err)
	consumer, err = k.Client.LoadConsumer("7baf6fdd-1e81-50d7-9210-1de7506a64ec", false)
	note("by id", consumer.Username, err)
	credential, err := k.Client.GetCredential()
	note("credential", credential.Id, err)
	k.Ctx.SetShared("text", "kept")
	k.Ctx.SetShared("number", 1.5)
	text, _ := k.Ctx.GetSharedString("text")
	number, err := k.Ctx.GetSharedFloat("number")
	note("shared", fmt.Sprint(text, " ", number), err)
	k.Nginx.SetCtx("n", 7)
	n, err := k.Nginx.GetCtxFloat("n")
	note("ctx", n, err)
	route, err := k.Router.GetRoute()
	note("route", fmt.Sprint(route.Name, " ", route.Tags), err)
	service, err := k.Router.GetService()
	note("service", fmt.Sprint(service.Name, " ", service.ReadTimeout, " ", service.Tags), err)
	memory, err := k.Node.GetMemoryStats()
	note("memory", memory.LuaSharedDicts.Kong.Capacity, err)
	k.Log.Warn("one", 2, nil)
}

func TestGoPDKsOwnClientChangesRequestAndResponse(t *testing.T) {
	response := runPDK(t, Options{}, []string{"GET /u/1?x=1 HTTP/1.1", "Host: h", "X-Gone: 1", "X-More: a"}, func(k *pdk.PDK) {
		k.ServiceRequest.SetMethod("PUT")
		k.ServiceRequest.SetPath("/é /y")
		k.ServiceRequest.SetQuery(map[string][]string{"q": {"a b", "c"}})
		k.ServiceRequest.SetHeader("x-set", "1")
		k.ServiceRequest.AddHeader("x-more", "b")
		k.ServiceRequest.ClearHeader("x-gone")
		k.ServiceRequest.SetHeaders(map[string][]string{"X-List": {"l", "m"}, "Host": {"other.test"}})
		k.ServiceRequest.SetRawBody("new body")
		k.ServiceRequest.SetScheme("https")
		k.Response.SetHeader("x-a", "1")
		k.Response.AddHeader("X-A", "2")
		k.Response.SetHeader("x-b", "1")
		k.Response.ClearHeader("X-B")
		k.Response.SetHeaders(map[string][]string{"Transfer-Encoding": {"gzip"}, "x-c": {"3"}})
		k.Response.SetStatus(418)
	})
	if response.status != 200 {
		t.Fatalf("status %d: %s", response.status, response.body)
	}
	e := response.echo(t)
	if e.Method != "PUT" || e.Path != "/%C3%A9%20/y" || e.Query != "q=a+b&q=c" || e.Host != "other.test" {
		t.Errorf("echo %+v", e)
	}
	if e.Headers["X-Set"] != "1" || e.Headers["X-More"] != "a, b" || e.Headers["X-Gone"] != "" || e.Headers["X-List"] != "l, m" {
		t.Errorf("headers %v", e.Headers)
	}
	if a := strings.Join(append(response.named("x-a"), response.named("x-c")...), "|"); a != "x-a: 1|x-a: 2|x-c: 3" || len(response.named("x-b")) != 0 {
		t.Errorf("response %v", response.lines)
	}
}

func TestLongBodiesAreFilesThatDoNotOutliveTheRequest(t *testing.T) {
	body := strings.Repeat("x", bodyBuffer+1)
	var read []byte
	var failed error
	prefix := t.TempDir()
	got := runPDK(t, Options{Prefix: prefix}, []string{
		"POST /u/1 HTTP/1.1", "Host: h", fmt.Sprintf("Content-Length: %d", len(body)), "", body,
	}, func(k *pdk.PDK) { read, failed = k.Request.GetRawBody() })
	if got.status != 200 || string(read) != body || failed != nil {
		t.Errorf("status %d, %d bytes, %v", got.status, len(read), failed)
	}
	left, err := os.ReadDir(prefix)
	if err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestBytesThatAreNoUTF8TravelBothWays(t *testing.T) {
	g, _ := withFake(t, oneRoute, func(e *fakeEvent) {
		answers, err := e.ask(question{"kong.request.get_header", stringAnswer("x-raw")})
		if err != nil {
			return
		}
		raw, _ := readString(answers[0])
		e.end(setHeaders(map[string]any{"X-Raw": raw}))
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
				answers, err := e.ask(question{"kong.request.get_header", stringAnswer("x-org")}, question{"kong.nginx.get_var", stringAnswer("http_x_org")})
				if err != nil {
					return
				}
				header, _ = readString(answers[0])
				variable, _ = readString(answers[1])
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
	realIP, err := newRealIP(nil, "", false)
	if err != nil {
		f.Fatal(err)
	}
	empty := &state{}
	n := &node{realIP: realIP, log: (&logLines{}).logger(), state: func() *state { return empty }, counters: &Counters{}}
	names := make([]string, 0, len(pdkMethods))
	for name := range pdkMethods {
		names = append(names, name)
	}
	f.Add([]byte{0x0a, 1, 'x'})
	f.Add(appendStruct(nil, map[string]any{"a": []any{"b", nil, 1.0, true, map[string]any{}}}))
	f.Fuzz(func(_ *testing.T, arg []byte) {
		for _, name := range names {
			x, _ := newExchange(n, Request{}, time.Time{})
			x.answer(name, arg)
		}
	})
}
