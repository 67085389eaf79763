package api_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const (
	check = "/v1/ratelimit/check"
	batch = check + "/batch"
)

// fault returns the path and the message of the only fault of an answer.
func (w *world) fault(a answer, status int) (path, saying string) {
	w.Helper()
	p := read[problem](w, w.want(a, status))
	if len(p.Errors) != 1 || p.Errors[0].Location == "body" && p.Errors[0].Value != nil {
		w.Fatalf("%s %s %.100s: %s, want one fault, and no body in it", a.call.method, a.call.path, a.call.body, a.Body)
	}
	return p.Errors[0].Location, p.Errors[0].Message
}

func TestANumberThatIsNotWrittenInDigitsIsAFaultWithItsPath(t *testing.T) {
	t.Parallel()
	w := open(t)
	long := strings.Repeat("9", 400)
	for _, test := range []struct {
		path, body    string
		status        int
		where, saying string
	}{
		{policies, strings.Replace(daily, "1000", "1e3", 1), 422, "body.limit", "not as 1e3"},
		{policies, strings.Replace(daily, "1000", "10.0", 1), 422, "body.limit", "not as 10.0"},
		{policies, strings.Replace(daily, "1000", "1E+3", 1), 422, "body.limit", "not as 1E+3"},
		{policies, strings.Replace(daily, "1000", "9223372036854775808", 1), 422, "body.limit", "64 bits"},
		{policies, strings.Replace(daily, "{", `{"id":9223372036854775808,`, 1), 422, "body.id", "64 bits"},
		{policies, strings.Replace(daily, "1000", "1e400", 1), 400, "body.limit", "not as 1e400"},
		{policies, strings.Replace(daily, "1000", long, 1), 400, "body.limit", "64 bits"},
		{policies, strings.Replace(daily, "1000", "1."+long, 1), 422, "body.limit", "digits"},
		{check, `{"org_id":"acme","cost":1e2}`, 422, "body.cost", "not as 1e2"},
		{
			batch, `{"checks":[{"org_id":"a","cost":1},{"org_id":"a","cost": 1e2 },{"org_id":"a","cost":7}]}`, 422,
			"body.checks[1].cost", "not as 1e2",
		},
		{policies, strings.Replace(daily, "{", `{"limit":1,`, 1), 400, "body.limit", "is given twice"},
		{batch, `{"checks":[{"org_id":"a"},{"org_id":"a","cost":1,"cost":2}]}`, 400, "body.checks[1].cost", "is given twice"},
		{batch, "{\"checks\":[{},{\"org_id\":\"\xff\"}]}", 400, "body.checks[1].org_id", "is not valid UTF-8"},
	} {
		if where, saying := w.fault(w.as("POST", test.path, test.body), test.status); where != test.where ||
			!strings.Contains(saying, test.saying) {
			t.Errorf("%.100s: %s %s, want %s %s", test.body, where, saying, test.where, test.saying)
		}
	}
}

func TestABodyThatIsNotJSONIsAFaultWithTheOffset(t *testing.T) {
	t.Parallel()
	w := open(t)
	for body, want := range map[string]string{
		"x} trailing":                        "byte 1",
		`{"limit":1} trailing`:               "byte 13",
		`{"limit":1}{"limit":1}`:             "byte 12",
		`{"limit":1,}`:                       "byte 12",
		`{"limit":1`:                         "byte 10",
		" ":                                  "byte 1",
		"{\"name\":\xff}":                    "byte 9",
		`{"limit":01}`:                       "byte 11",
		`{"a":` + strings.Repeat("[", 20000): "32 deep",
	} {
		if where, saying := w.fault(w.as("POST", policies, body), http.StatusBadRequest); where != "body" ||
			!strings.Contains(saying, want) {
			t.Errorf("%.40q: %s %s, want %s", body, where, saying, want)
		}
	}
}

func TestAFaultOfATimeThatIsTooLongNamesTheLongest(t *testing.T) {
	t.Parallel()
	w := open(t)
	const override = `{"kind":"multiplier","factor":2,"reason":"a test","expires_in":"`
	for _, long := range []string{
		"99999999h", "100001d", "100000d1s", "99999999999999999999d", "9999999999999999999999h", "2562047h",
	} {
		if where, saying := w.fault(w.as("POST", overrides, override+long+`"}`), 422); where != "body.expires_in" ||
			!strings.Contains(saying, "100000d") {
			t.Errorf("%s: %s %s", long, where, saying)
		}
	}
	w.want(w.as("POST", overrides, override+`100000d"}`), http.StatusCreated)
	for window, want := range map[string]string{
		"90000000h": "366d", "366d1s": "366d", "99999999999999999999d": "366d",
		"1.5s": "whole seconds", "0s": "whole seconds",
		"soon": "time such as", "-1h": "time such as", "1h1d": "time such as",
	} {
		if where, saying := w.fault(w.as("POST", policies, strings.Replace(daily, "1d", window, 1)),
			422); where != "body.window" || !strings.Contains(saying, want) {
			t.Errorf("%s: %s %s, want %s", window, where, saying, want)
		}
	}
	w.made(strings.Replace(daily, "1d", "366d", 1))
}

func TestAnInvalidNetworkIsAFaultInPlainWords(t *testing.T) {
	t.Parallel()
	w := open(t)
	const ban = `{"kind":"ban","permanent":true,"reason":"a test","ip":"`
	const want = "one address or a network, such as 192.0.2.1"
	for _, ip := range []string{"10.0.0.0/33", "10.0.0/8", "10.0.0", "10.0.0.0/"} {
		where, saying := w.fault(w.as("POST", overrides, ban+ip+`"}`), 422)
		if where != "body.ip" || !strings.Contains(saying, want) || !strings.Contains(saying, strconv.Quote(ip)) {
			t.Errorf("%s: %s %s, want %s", ip, where, saying, want)
		}
	}
}

func TestAnIfMatchThatIsNoETagIsAFaultAndNotAConflict(t *testing.T) {
	t.Parallel()
	w := open(t)
	path, tag, _ := w.made(daily)
	changed := strings.Replace(daily, "1000", "7", 1)
	for _, odd := range []string{"garbage", "7-3", `"7-3`, `"a" "b"`, `"a",`, "w/\"a\"", "**", `*, "1"`, `"1", *`} {
		for _, c := range []call{
			{admin, "PUT", path, changed, nil},
			{admin, "PUT", policies, changed, nil},
			{admin, "DELETE", path + "?reason=over", "", nil},
			{admin, "PUT", "/v1/orgs/acme", `{}`, nil},
		} {
			if where, saying := w.fault(w.do(c.with("If-Match", odd)), 422); where != "header.If-Match" ||
				!strings.Contains(saying, `"7-3"`) {
				t.Errorf("%s: %s %s", odd, where, saying)
			}
		}
	}
	for _, other := range []string{`"0-0"`, `W/"0-0"`, `"0-0" , W/"a"`, "W/" + tag} {
		w.want(w.as("PUT", path, changed, "If-Match", other), http.StatusPreconditionFailed)
	}
	w.want(w.as("PUT", path, changed, "If-Match", ` "0-0", `+tag), http.StatusOK)
}

// What readers make of different things that they cannot read would be one name for all of them.
func TestATextWithAReplacementCharacterIsAFaultInEveryField(t *testing.T) {
	t.Parallel()
	p := planning(t, plan(), policy.Rows{})
	for _, lost := range []string{`sur\ud800`, `sur\ud801`, `\udc00\ud800`, "sur\ufffd", `sur\ufffd`, `sur\u0000`} {
		for _, test := range []struct{ method, path, body, where string }{
			{"POST", check, `{"org_id":"$"}`, "body.org_id"},
			{"POST", check, `{"org_id":"a","user_id":"$"}`, "body.user_id"},
			{"POST", check, `{"org_id":"a","credential_id":"$"}`, "body.credential_id"},
			{"POST", check, `{"org_id":"a","tier":"$"}`, "body.tier"},
			{"POST", check, `{"org_id":"a","endpoint":"$"}`, "body.endpoint"},
			{"POST", batch, `{"checks":[{"org_id":"a"},{"org_id":"$"}]}`, "body.checks[1].org_id"},
			{"POST", policies, `{"tenant":"$","name":"x","limit":1,"window":"1m"}`, "body.tenant"},
			{"POST", policies, `{"tier":"$","name":"x","limit":1,"window":"1m"}`, "body.tier"},
			{"POST", policies, `{"tier":"gold","name":"x","limit":1,"window":"1m","reason":"$"}`, "body.reason"},
			{"POST", overrides, `{"kind":"ban","permanent":true,"reason":"r","user":"$"}`, "body.user"},
			{"POST", overrides, `{"kind":"ban","permanent":true,"reason":"r","credential":"$"}`, "body.credential"},
			{"POST", overrides, `{"kind":"ban","permanent":true,"reason":"$"}`, "body.reason"},
			{"POST", policies, `{"orgTier":"$","name":"x","limit":1,"window":"1m"}`, "body.orgTier"},
			{"PUT", "/v1/orgs/acme", `{"tier":"$"}`, "body.tier"},
			{"PUT", "/v1/orgs/acme", `{"reason":"$"}`, "body.reason"},
			{"POST", acmeReset, `{"reason":"r","policy":"$"}`, "body.policy"},
			{"POST", acmeReset, `{"reason":"r","user":"$"}`, "body.user"},
			{"POST", "/v1/ratelimit/candidates/july/policies", `{"policies":[{}],"reason":"$"}`, "body.reason"},
		} {
			if where, _ := p.fault(p.as(test.method, test.path, strings.ReplaceAll(test.body, "$", lost)),
				422); where != test.where {
				t.Errorf("%s %s of %q: a fault at %s, want %s", test.path, test.body, lost, where, test.where)
			}
		}
	}
	for _, lost := range []string{"sur\ufffd", "sur\xff", "sur\xed\xa0\x80"} {
		for at, where := range map[string]string{
			"/v1/orgs/" + url.PathEscape(lost):                                    "path.org",
			policies + "?tier=" + url.QueryEscape(lost):                           "query.tier",
			policies + "?tier=%00":                                                "query.tier",
			"/v1/orgs/acme/ratelimit/usage?user=" + url.QueryEscape(lost):         "query.user",
			"/v1/ratelimit/audit?tenant=" + url.QueryEscape("acme"+lost+"globex"): "query.tenant",
		} {
			if got, _ := p.fault(p.as("GET", at, ""), 422); got != where {
				t.Errorf("GET %s: a fault at %s, want %s", at, got, where)
			}
		}
	}
	p.want(p.as("POST", check, `{"org_id":"sur\ud83d\ude00"}`), http.StatusOK)
}

func TestAnIdempotencyKeyOfADecisionIsAFaultAndNotIgnored(t *testing.T) {
	t.Parallel()
	p := planning(t, plan(), policy.Rows{})
	for path, body := range map[string]string{check: `{"org_id":"acme"}`, batch: `{"checks":[{"org_id":"acme"}]}`} {
		for _, key := range []string{"k", "ü", strings.Repeat("k", 300)} {
			if where, saying := p.fault(p.as("POST", path, body, "Idempotency-Key", key),
				422); where != "header.Idempotency-Key" || !strings.Contains(saying, "spends again") {
				t.Errorf("%s: %s %s", path, where, saying)
			}
		}
	}
	if used := p.has("acme", ""); used["daily of the org"] != 0 {
		t.Errorf("used is %v, want nothing spent", used)
	}
}

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
