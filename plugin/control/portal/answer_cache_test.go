package portal

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"
)

func TestPagesShareAReadThatTakesLong(t *testing.T) {
	var c answerCache
	start, turn := time.Now(), make(chan string)
	wants := func(after time.Duration, want string) {
		t.Helper()
		body, err := c.answer(start.Add(after), "/a", func() (json.RawMessage, error) {
			if text := <-turn; text != "fails" {
				return json.RawMessage(text), nil
			}
			return nil, errors.New("fails")
		})
		if got := fmt.Sprint(string(body), err); got != want {
			t.Errorf("after %v a page shows %s, want %s", after, got, want)
		}
	}
	var pages sync.WaitGroup
	for range 3 {
		pages.Go(func() { wants(0, "1<nil>") })
	}
	turn <- "1"
	pages.Wait()
	wants(sharedTime-1, "1<nil>")
	for _, text := range []string{"fails", "2"} { // it is read again at once
		pages.Go(func() { wants(sharedTime, map[bool]string{true: "fails", false: "2<nil>"}[text == "fails"]) })
		turn <- text
		pages.Wait()
	}
	wants(2*sharedTime-1, "2<nil>")
}

func TestOperatorsShareFewAnswersAndTenantsNone(t *testing.T) {
	const topAPI = "/v1/ratelimit/usage/top"
	now := time.Now()
	w := open(t, func(o *Options) { o.Now = func() time.Time { return now } })
	w.api.answer("GET "+topAPI, http.StatusOK, `{}`)
	admin, viewer := w.signedIn(adminSecret), w.signedIn(viewerSecret)
	for n := range 2 * maxCached {
		for _, b := range []*browser{admin, viewer} {
			w.want(b.get(fmt.Sprint("/portal/top?policy=p", n)), http.StatusOK)
		}
	}
	calls := w.api.requests()
	if n := len(w.portal.shared.reads); n > maxCached || len(calls) != 3*maxCached {
		t.Errorf("%d answers are kept after %d reads, want at most %d after %d", n, len(calls), maxCached, 3*maxCached)
	}
	w.want(w.signedIn(acmeSecret).get("/portal/top"), http.StatusForbidden)
	if more := w.api.requests()[len(calls):]; len(more) > 0 {
		t.Errorf("a tenant reads %q", more)
	}
}
