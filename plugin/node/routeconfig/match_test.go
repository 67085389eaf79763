package routeconfig

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// routed has routes by everything that Kong's router knows.
const routed = `
plugins:
- {name: tenant-rate-limiting, config: {}}
services:
- name: up
  routes:
  - {name: all, paths: [/]}
  - {name: long, paths: [/records/archive]}
  - {name: writes, paths: [/records], methods: [POST, PUT]}
  - {name: low, paths: ["~/v1/\\d+"]}
  - {name: high, paths: ["~/v1/.+"], regex_priority: 5}
  - {name: api, hosts: [api.example.com], paths: [/api]}
  - {name: any-host, hosts: ["*.example.com"], paths: [/api]}
  - {name: beta, headers: {x-beta: ["1"]}, paths: [/beta]}
  - {name: kind, headers: {x-kind: ["~*^v[12]$"], x-beta: ["1", Two]}, paths: [/beta]}
  - {name: odd, headers: {x-odd: ["~*look(?=ahead)"]}, paths: [/odd]}
  - {name: inner, sources: [{ip: 10.0.0.0/8}], paths: [/inner]}
  - {name: deletes, methods: [DELETE]}
  - {name: sni, hosts: [a.example.net], snis: [a.example.net], paths: [/secure], expression: 'http.path == "/secure"'}
  - {name: strange, paths: ["~/look(?=ahead)"]}
`

func TestTheRouteOfAPathIsTheOneThatKongChooses(t *testing.T) {
	f, err := Read([]byte(routed), "kong.yml")
	require.NoError(t, err)
	if got := strings.Join(f.RequestHeaders(), " "); got != "Host x-beta x-kind x-odd" {
		t.Errorf("the headers %s are read", got)
	}
	for _, c := range []struct {
		method, path, host string
		want               string // or those that are possible
	}{
		{"GET", "/other", "", "all"},
		{"GET", "/records/archive/7", "", "long"},
		{"POST", "/records/archive/7", "", "writes"}, // more rules come before a longer path
		{"GET", "/v1/7", "", "high"},
		{"DELETE", "/other", "", "all"}, // a path weighs more than a method
		{"GET", "/api", "api.example.com", "api"},
		{"GET", "/api", "API.example.com:8443", "api"},
		{"GET", "/api", "eu.example.com", "any-host"},
		{"GET", "/api", "example.net", "all"},
		{"GET", "/api", "", "api (by hosts) or any-host (by hosts) or all"},
		{"GET", "/beta", "", "kind (by header x-beta, header x-kind) or beta (by header x-beta) or all"},
		{"GET", "/inner", "", "inner (by sources) or all"},
		{"GET", "/secure", "a.example.net", "sni (by snis, expression) or all"},
		{"GET", "/secure", "", "sni (by hosts, snis, expression) or all"},
		{"GET", "/lookahead", "", "strange (by the pattern ~/look(?=ahead)) or all"},
	} {
		none := func(string) ([]string, bool) { return nil, false }
		got, possible := f.RouteOf(&Request{Method: c.method, Path: c.path, Host: c.host, Header: none})
		if len(possible) > 0 {
			got += strings.Join(possible, " or ")
		}
		assert.Equal(t, c.want, got, "%s %s of host %q", c.method, c.path, c.host)
	}
}

func TestTheHeadersInALogChooseTheRoute(t *testing.T) {
	f, err := Read([]byte(routed), "kong.yml")
	require.NoError(t, err)
	for _, c := range []struct {
		path    string
		headers map[string][]string // that the log has
		want    string              // or those that are possible
	}{
		{"/beta", map[string][]string{"x-beta": {"1"}, "x-kind": nil}, "beta"},
		{"/beta", map[string][]string{"x-beta": {"2"}, "x-kind": nil}, "all"},
		{"/beta", map[string][]string{"x-beta": nil, "x-kind": {"v1"}}, "all"},
		{"/beta", map[string][]string{"x-beta": {"0", "tWO"}, "x-kind": {"V2"}}, "kind"},
		{"/beta", map[string][]string{"x-beta": {"1"}, "x-kind": {"v3"}}, "beta"},
		{"/beta", map[string][]string{"x-beta": {"1"}}, "kind (by header x-kind) or beta"},
		{"/beta", map[string][]string{"x-kind": {"v3"}}, "beta (by header x-beta) or all"},
		{"/odd", map[string][]string{"x-odd": {"lookahead"}}, "odd (by the pattern of header x-odd) or all"},
		{"/odd", map[string][]string{"x-odd": nil}, "all"},
	} {
		got, possible := f.RouteOf(&Request{Method: "GET", Path: c.path, Header: func(name string) ([]string, bool) {
			lines, logged := c.headers[name]
			return lines, logged
		}})
		if len(possible) > 0 {
			got += strings.Join(possible, " or ")
		}
		assert.Equal(t, c.want, got, "%s with %v", c.path, c.headers)
	}
}
