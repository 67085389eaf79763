package gateway

import (
	"fmt"
	"testing"
)

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
