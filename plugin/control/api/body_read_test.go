package api_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// listOf returns a batch of n checks.
func listOf(n int, check string) string {
	return `{"checks":[` + strings.TrimSuffix(strings.Repeat(check+",", n), ",") + "]}"
}

// namesOf returns an object with unknown names and a field.
func namesOf(n int, field string) string {
	var b strings.Builder
	b.WriteByte('{')
	for i := range n {
		fmt.Fprintf(&b, `"n%d":{},`, i)
	}
	return b.String() + field + "}"
}

// longCheck is a check with the longest names.
var longCheck = fmt.Sprintf(`{"org_id":"acme","user_id":%q,"credential_id":%[1]q,"endpoint":"GET /%s","dry_run":true}`,
	strings.Repeat("x", 1000), strings.Repeat("y", 4000))

// meter counts what is read of a body.
type meter struct {
	io.Reader
	read int
}

func (m *meter) Read(into []byte) (int, error) {
	n, err := m.Reader.Read(into)
	m.read += n
	return n, err
}

// weigh sends a body as the weakest token may, with its length or without, and returns the answer, how much of the body
// was read, and how much memory that took, both in bytes.
func (w *world) weigh(at, body string, chunked bool) (a answer, read int, took uint64) {
	w.Helper()
	c := call{token: ofAcme, method: "POST", path: at, body: body}
	r := c.request()
	counted := &meter{Reader: strings.NewReader(body)}
	if r.Body = io.NopCloser(counted); chunked {
		r.ContentLength = -1
	}
	recorder := httptest.NewRecorder()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	w.server.ServeHTTP(recorder, r)
	runtime.ReadMemStats(&after)
	return answer{recorder, c}, counted.read, after.TotalAlloc - before.TotalAlloc
}

func TestABodyOfTooManyValuesIsDeniedBeforeItIsDecoded(t *testing.T) { // it measures memory: not parallel
	p := planning(t, plan(), policy.Rows{})
	// Bytes of memory for bodies of up to 1 MiB, of which each value would take more than its bytes. A buffer for a body
	// of unknown length doubles, and copies twice with the race detector.
	const most = 5 << 20
	const tooMany = "has more than 4000 names and values"
	for name, test := range map[string]struct{ path, body, where, saying string }{
		"empty checks":        {batch, listOf(340_000, "{}"), "body", tooMany},
		"a check too many":    {batch, listOf(101, "{}"), "body.checks", "expected array length <= 100"},
		"one name many times": {check, "{" + strings.Repeat(`"a":1,`, 8000) + `"a":1}`, "body", tooMany},
		"many unknown names":  {batch, listOf(1, namesOf(70_000, `"b":1`)), "body", tooMany},
		"names and no UTF-8":  {batch, listOf(1, namesOf(70_000, "\"b\":\"\xff\"")), "body", tooMany},
		"no UTF-8 far within": {batch, listOf(1, namesOf(1_000, "\"b\":\"\xff\"")), "body.checks[0].b", "is not valid UTF-8"},
		"a list in a field":   {check, `{"org_id":[` + strings.Repeat(`"",`, 10_000) + `""]}`, "body", tooMany},
		"too deep": {
			batch, `{"checks":` + strings.Repeat("[", 500_000), "body",
			"has values nested more than 32 deep",
		},
	} {
		for _, chunked := range []bool{false, true} {
			a, _, took := p.weigh(test.path, test.body, chunked)
			status := http.StatusUnprocessableEntity
			if strings.Contains(test.saying, "deep") || strings.Contains(test.saying, "UTF-8") {
				status = http.StatusBadRequest
			}
			if where, saying := p.fault(a, status); where != test.where || saying != test.saying {
				t.Errorf("%s: %s %s, want %s %s", name, where, saying, test.where, test.saying)
			}
			if took > most {
				t.Errorf("%s (chunked: %t): %d bytes took %d bytes of memory", name, chunked, len(test.body), took)
			}
		}
	}
	if used := p.has("acme", ""); used["daily of the org"] != 0 {
		t.Errorf("denied bodies have spent %v", used)
	}
}

func TestAnyBodyWithinTheBoundsIsDecided(t *testing.T) {
	t.Parallel()
	p := planning(t, plan(), policy.Rows{})
	for name, body := range map[string]string{
		"a hundred checks":        listOf(100, `{"org_id":"acme","dry_run":true}`),
		"brackets in its strings": listOf(100, `{"org_id":"acme","user_id":"[[{{,,,::\"\\","dry_run":true}`),
		"a megabyte of blanks":    strings.Repeat(" \n\t\r", 250_000) + listOf(1, `{"org_id":"acme","dry_run":true}`),
		"all fields, long":        listOf(100, longCheck),
	} {
		for _, chunked := range []bool{false, true} {
			a, read, _ := p.weigh(batch, body, chunked)
			if p.want(a, http.StatusOK); read != len(body) {
				t.Errorf("%s: %d of %d bytes were read", name, read, len(body))
			}
		}
	}
}

func TestABodyThatIsTooLongIsNotReadToItsEnd(t *testing.T) {
	t.Parallel()
	w := equipped(t)
	for _, o := range operations(w) {
		if !o.hasBody {
			continue
		}
		most := o.mostBody()
		for _, chunked := range []bool{false, true} {
			c := o.call(admin)
			r := c.request()
			counted := &meter{Reader: io.LimitReader(blanks{}, 20<<20)}
			if r.Body, r.ContentLength = io.NopCloser(counted), 20<<20; chunked {
				r.ContentLength = -1
			}
			w.want(w.serve(c, r), http.StatusRequestEntityTooLarge)
			if chunked && counted.read > most || !chunked && counted.read > 0 {
				t.Errorf("%s (chunked: %t): %d bytes were read, want at most %d", o.id, chunked, counted.read, most)
			}
		}
	}
}

// blanks is a reader of endless blanks.
type blanks struct{}

func (blanks) Read(into []byte) (int, error) {
	return copy(into, bytes.Repeat([]byte(" "), len(into))), nil
}

func TestFaultsBeyondTheTwentiethAreOnlyCounted(t *testing.T) {
	t.Parallel()
	w := equipped(t)
	a := w.want(w.as("POST", check, namesOf(63, `"org_id":"acme"`)), http.StatusUnprocessableEntity)
	p := read[problem](w, a)
	if len(p.Errors) != 20 || p.Detail != "the request is not valid; these are the first 20 faults, and 43 more" ||
		a.Body.Len() > 4<<10 {
		t.Errorf("%d faults in %d bytes: %s", len(p.Errors), a.Body.Len(), p.Detail)
	}
	var query strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&query, "&n%d=1", i)
	}
	a = w.want(w.as("GET", policies+"?"+query.String()[1:], ""), http.StatusUnprocessableEntity)
	if n := len(read[problem](w, a).Errors); n > 20 || a.Body.Len() > 4<<10 {
		t.Errorf("a query with 1000 unknown names: %d faults in %d bytes", n, a.Body.Len())
	}
	many := listOf(100, `{"org_id":7,"user_id":7,"ip":"x","cost":-1}`)
	if a = w.want(w.as("POST", batch, many), http.StatusUnprocessableEntity); len(read[problem](w, a).Errors) != 20 {
		t.Errorf("a hundred checks with four faults each: %s", a.Body)
	}
}

func TestAnEncodedBodyIsDeniedAndNotDecoded(t *testing.T) {
	t.Parallel()
	w := equipped(t)
	for _, coding := range []string{"gzip", "deflate", "br", "identity, gzip"} {
		w.want(w.as("POST", check, `{"org_id":"acme"}`, "Content-Encoding", coding), http.StatusUnsupportedMediaType)
	}
	w.want(w.as("POST", check, `{"org_id":"acme"}`, "Content-Encoding", "identity"), http.StatusOK)
}

// gate is a body that ends when it is opened.
type gate struct {
	io.Reader
	opened <-chan struct{}
}

func (g gate) Read(into []byte) (int, error) {
	n, err := g.Reader.Read(into)
	if n == 0 && err == io.EOF {
		<-g.opened
	}
	return n, err
}

func TestLargeBodiesBeyondTheirNumberAreDeniedAndSmallOnesNeedNoPlace(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	p := planning(t, plan(), policy.Rows{})
	p.world = open(t, func(o *api.Options) { o.Decider, o.Buckets, o.Metrics = p.decider, p.store, registry })
	large := listOf(3, longCheck) // its length says that more is to come
	opened, ended := make(chan struct{}), make(chan answer)
	const places, slow = 64, 70
	for range slow {
		go func() {
			c := call{token: ofAcme, method: "POST", path: batch, body: large}
			r := c.request()
			r.Body, r.ContentLength = io.NopCloser(gate{strings.NewReader(large), opened}), 1<<20-1
			recorder := httptest.NewRecorder()
			p.server.ServeHTTP(recorder, r)
			ended <- answer{recorder, c}
		}()
	}
	for range slow - places {
		if a := p.want(<-ended, http.StatusServiceUnavailable); a.Header().Get("Retry-After") != "1" {
			t.Errorf("without a place: %v", a.Header())
		}
	}
	p.want(p.do(call{ofAcme, "POST", check, `{"org_id":"acme"}`, nil}), http.StatusOK)
	close(opened)
	for range places {
		p.want(<-ended, http.StatusOK)
	}
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		n := f.GetMetric()[0].GetCounter().GetValue()
		if f.GetName() == "rate_limiter_control_busy_total" && n != slow-places {
			t.Errorf("%v are counted as denied, want %d", n, slow-places)
		}
	}
}

// reader is a client that sends more requests while it reads an answer.
type reader struct {
	*httptest.ResponseRecorder
	before func()
}

func (r *reader) WriteHeader(status int) {
	if before := r.before; before != nil {
		r.before = nil
		before()
	}
	r.ResponseRecorder.WriteHeader(status)
}

func TestAnAnswerThatIsReadSlowlyHoldsNoPlaceOfALargeBody(t *testing.T) {
	t.Parallel()
	p := planning(t, plan(), policy.Rows{})
	whole := listOf(1, `{"org_id":"acme","dry_run":true}`) + strings.Repeat(" ", 1<<20-1000)
	c := call{token: ofAcme, method: "POST", path: batch, body: whole}
	sentMore := false
	slow := &reader{httptest.NewRecorder(), func() {
		sentMore = true
		p.want(p.do(c), http.StatusOK)
	}}
	p.server.ServeHTTP(slow, c.request())
	if !sentMore || slow.Code != http.StatusOK {
		t.Errorf("answered by %d, and sent another request meanwhile: %t", slow.Code, sentMore)
	}
}
