package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// revisedWrite is a write of what has a revision, and one of another caller before it. A {} is the id of the row.
type revisedWrite struct {
	row, other, write string // each a method and a path
	body              string
}

func revisedWrites() (list []revisedWrite) {
	of := func(row, other string, writes ...string) {
		for _, write := range writes {
			request, body, _ := strings.Cut(write, "; ")
			list = append(list, revisedWrite{row, other, request, body})
		}
	}
	of(july, "POST "+july+"/assign",
		"POST "+july+`/assign; {"percent":7,"reason":"r"}`, "DELETE "+july+"?reason=r",
		"PUT "+july+"/policies; "+strings.Replace(daily, "1000", "300", 1),
		"POST "+july+"/policies; "+samples["put-candidate-policies"].body,
		"DELETE "+july+"/policies?policy=daily&tier=gold&reason=r",
		"POST "+july+"/promote; "+why, "POST "+july+`/rebase; {"version":3,"reason":"r"}`)
	for _, at := range []string{webhooks + "/{}", generalWebhooks + "/{}"} {
		of(at, "POST "+at+"/rotate", "POST "+at+"/disable; {}", "POST "+at+"/rotate; {}", "POST "+at+"/test; {}",
			"DELETE "+at+"?reason=r")
		of(at, "POST "+at+"/disable", "POST "+at+"/enable; {}")
	}
	ofOrg := orgTokens + "/july"
	of(ofOrg, "POST "+ofOrg+"/rotate", "POST "+ofOrg+"/rotate; {}", "DELETE "+ofOrg)
	return list
}

// TestAWriteFromAnotherRevisionIsDenied has another caller write before each write that may name what it was made from.
func TestAWriteFromAnotherRevisionIsDenied(t *testing.T) {
	t.Parallel()
	for _, c := range revisedWrites() {
		t.Run(c.write, func(t *testing.T) {
			t.Parallel()
			w := open(t)
			openJuly(w)
			w.want(w.as("POST", orgTokens, samples["create-org-token"].body), http.StatusCreated)
			w.want(w.as("POST", webhooks, hooked), http.StatusCreated)
			w.want(w.as("POST", generalWebhooks, hooked), http.StatusCreated)
			id := "1"
			if strings.Contains(c.row, generalWebhooks) {
				id = "2"
			}
			do := func(request, body string, headers ...string) answer {
				method, path, _ := strings.Cut(strings.ReplaceAll(request, "{}", id), " ")
				return w.as(method, path, body, headers...)
			}
			tag := func() string {
				if c.row == orgTokens+"/july" { // the API lists them only
					list := read[answers.OrgTokens](w, do("GET "+orgTokens, ""))
					return fmt.Sprintf("%q", fmt.Sprint(list.Tokens[0].Revision))
				}
				return w.want(do("GET "+c.row, ""), http.StatusOK).Header().Get("ETag")
			}
			before := tag()
			if again := tag(); again != before || before == "" {
				t.Fatalf("the ETag is %q, then %q", before, again)
			}
			body := `{"reason":"another"}`
			if strings.HasSuffix(c.other, "/assign") {
				body = `{"add":["globex"],"reason":"another"}`
			}
			w.want(do(c.other, body), http.StatusOK)
			now := tag()
			mark := map[bool]string{true: "&", false: "?"}[strings.Contains(c.write, "?")]
			for _, late := range []answer{
				do(c.write, c.body, "If-Match", before),
				do(c.write+mark+"revision="+strings.Trim(before, `"`), c.body),
			} {
				if got := w.want(late, http.StatusPreconditionFailed).Header().Get("ETag"); got != now {
					t.Errorf("the answer to a late write has the ETag %q, want %q", got, now)
				}
			}
			if got := tag(); got != now {
				t.Errorf("a late write changes the ETag from %s to %s", now, got)
			}
			if done := do(c.write, c.body, "If-Match", now); done.Code >= 300 {
				t.Errorf("a write from the current revision: %d %s", done.Code, done.Body)
			}
		})
	}
}

func TestARetryOfAWriteFromARevisionIsAnsweredAgain(t *testing.T) {
	t.Parallel()
	w := open(t)
	openJuly(w)
	tag := w.as("GET", july, "").Header().Get("ETag")
	assign := func() answer {
		return w.want(w.as("POST", july+"/assign", `{"percent":5,"reason":"r"}`, "If-Match", tag, "Idempotency-Key", "k"),
			http.StatusOK)
	}
	first := assign()
	assigned := w.as("GET", july, "").Header().Get("ETag")
	if again := assign(); again.Body.String() != first.Body.String() {
		t.Errorf("sent again, it answers %s", again.Body)
	}
	w.want(w.as("POST", july+"/promote", why, "If-Match", tag), http.StatusPreconditionFailed)
	w.want(w.as("POST", july+"/promote", why, "If-Match", "*"), http.StatusOK)
	promoted := w.as("GET", july, "").Header().Get("ETag")
	w.want(w.as("POST", july+"/rollback", why, "If-Match", assigned), http.StatusPreconditionFailed)
	w.want(w.as("POST", july+"/rollback", why, "If-Match", promoted), http.StatusOK)
}

func TestATokenOfAnotherRevisionIsNotRevoked(t *testing.T) {
	t.Parallel()
	w := open(t)
	const july = tokens + "/july"
	w.want(w.as("POST", tokens, samples["create-token"].body), http.StatusCreated)
	made := w.want(w.as("GET", july, ""), http.StatusOK).Header().Get("ETag")
	w.want(w.as("DELETE", july+"?reason=r", "", "If-Match", made), http.StatusOK)
	w.want(w.as("DELETE", july+"?reason=r", "", "If-Match", made), http.StatusPreconditionFailed)
	w.want(w.as("DELETE", july+"?reason=r", ""), http.StatusNotFound)
	w.want(w.as("POST", tokens, samples["create-token"].body), http.StatusCreated) // another one of the name
	w.want(w.as("DELETE", july+"?reason=r&revision="+strings.Trim(made, `"`), ""), http.StatusPreconditionFailed)
	w.want(w.as("GET", tokens+"/other", ""), http.StatusNotFound)
	w.want(w.as("DELETE", tokens+"/other?reason=r", "", "If-Match", made), http.StatusNotFound)
}

func init() {
	for _, of := range []string{
		"delete-webhook", "delete-general-webhook", "delete-override", "delete-general-override",
	} {
		scenarios[of] = func(c *contract, o operation) {
			c.fill()
			c.check(o, c.do(o.call(admin).with("If-Match", `"0"`)))
		}
	}
}
