package api_test

import (
	"fmt"
	"strings"
	"testing"
)

func TestAFaultEchoesOnlyTheBeginningOfAValue(t *testing.T) {
	t.Parallel()
	w := equipped(t)
	for name, text := range map[string]string{
		"plain": strings.Repeat("x", 5000), "wide": strings.Repeat("ü", 2500), "dotted": strings.Repeat("x.", 2500),
	} {
		for _, c := range []call{
			{admin, "POST", checkPath, `{"org_id":"acme","` + text + `":1}`, nil},
			{admin, "POST", batchPath, `{"checks":[{"` + text + `":1}]}`, nil},
			{admin, "POST", checkPath, `{"` + text + `":1,"` + text + `":2}`, nil},
			{admin, "POST", checkPath, `{"` + text + `":{"` + text + `":1e400}}`, nil},
			{admin, "POST", checkPath, `{"` + text + `":{"cost":12345678901234567890}}`, nil},
			{admin, "POST", checkPath, `{"` + text + `":[` + strings.Repeat("1,", 101) + `1]}`, nil},
			{admin, "POST", checkPath, `{"org_id":"` + text + `"}`, nil},
			{admin, "POST", policies, strings.ReplaceAll(`{"name":"$","limit":1,"window":"$","algorithm":"$","scope":"$"}`, "$",
				text), nil},
			{admin, "POST", policies, `{"name":"a","limit":1,"window":"1d","tier":"gold","endpoint":"GET /` + text + `"}`, nil},
			{
				admin, "POST", overrides, strings.ReplaceAll(`{"kind":"$","reason":"r","expires_at":"$","factor":"$"}`, "$", text),
				nil,
			},
			{admin, "GET", policies + "?limit=" + text, "", nil},
			{admin, "GET", policies + "?" + text + "=1", "", nil},
			{admin, "GET", policies + "?cursor=" + text, "", nil},
			{admin, "GET", policies + "/" + text, "", nil},
		} {
			a := w.do(c)
			if a.Code < 400 || a.Code > 499 {
				continue // a long text is fine there
			}
			p := read[problem](w, a)
			for _, e := range p.Errors {
				value := fmt.Sprint(e.Value)
				isLong := len([]rune(value)) > 101 || len([]rune(e.Location)) > 401 || len([]rune(e.Message)) > 501
				if isLong || strings.ContainsRune(e.Location+e.Message+value, '\ufffd') {
					t.Errorf("%s: %s %.30s: a fault echoes too much, or half a character: %.200v", name, c.method, c.path, e)
				}
			}
			if len([]rune(p.Detail)) > 600 {
				t.Errorf("%s: %s %.30s: the detail has %d bytes", name, c.method, c.path, len(p.Detail))
			}
		}
	}
}
