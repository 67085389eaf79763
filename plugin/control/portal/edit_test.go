package portal

import (
	"cmp"
	"html"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// editing is a form as an operator fills it, what its preview has, and the notice after it is applied.
type editing struct {
	at      string
	enter   url.Values
	changes []string
	done    string
}

const settling = `{"reserve": 5, "sources": [{"from": "header.X-Used"}]}`

// edits are the writes of the console, in an order in which they succeed. A reason is entered into each.
var edits = []editing{
	{
		"new/policies",
		url.Values{"name": {"burst"}, "tenant": {"acme"}, "limit": {"1,000"}, "window": {"1m"}},
		[]string{"<ins>1000</ins>", "<ins>60</ins>"},
		"The policy burst is set",
	},
	{
		"policies/{policies}/edit",
		url.Values{"limit": {"2_000"}, "settle": {settling}},
		[]string{"<del>1000</del>", "<ins>2000</ins>", "settle.reserve"},
		"The policy burst is set",
	},
	{
		"new/tiers",
		url.Values{"name": {"gold"}, "description": {"pays"}, "price_text": {"$499 a month"}},
		[]string{"<ins>pays</ins>", "<ins>$499 a month</ins>"},
		"The tier gold is set",
	},
	{"tiers/gold/edit", url.Values{"description": {"pays more"}}, []string{"<del>pays</del>"}, "The tier gold is set"},
	{"tenants/acme/edit", url.Values{"tier": {"gold"}}, []string{"<ins>gold</ins>"}, "acme is changed"},
	{
		"new/costs",
		url.Values{"endpoint": {"POST /exports"}, "cost": {"50"}},
		[]string{"<ins>50</ins>"},
		"The cost of POST /exports is set",
	},
	{
		"costs/{costs}/edit",
		url.Values{"cost": {"7"}},
		[]string{"<del>50</del>", "<ins>7</ins>"},
		"The cost of POST /exports is set",
	},
	{
		"new/prices",
		url.Values{"model": {"gpt-4o"}, "prompt": {"2.5"}, "completion": {"10"}},
		[]string{"<ins>2.5</ins>"},
		"The price of gpt-4o is set",
	},
	{
		"prices/{prices}/edit",
		url.Values{"prompt": {"3"}},
		[]string{"<del>2.5</del>", "<ins>3</ins>"},
		"The price of gpt-4o is set",
	},
	{
		"new/webhooks",
		url.Values{"url": {"https://example.com/hook"}, "types": {eventPrefix + "denial", eventPrefix + "abuse.step"}},
		[]string{"<ins>https://example.com/hook</ins>", "abuse.step"},
		"The secret of webhook https://example.com/hook",
	},
	{"webhooks/{webhooks}/disable", nil, nil, "It is disabled"},
	{"webhooks/{webhooks}/enable", nil, nil, "It is enabled"},
	{"webhooks/{webhooks}/test", nil, nil, "A test event is on its way"},
	{"webhooks/{webhooks}/rotate", url.Values{"now": {"true"}}, nil, "The secret of"},
	{"webhooks/{webhooks}/delete", nil, []string{"<del>https://example.com/hook</del>"}, "is deleted"},
	{
		"new/tokens",
		url.Values{"name": {"ci"}, "role": {"viewer"}, "expires_at": {"2031-01-03T14:00"}},
		[]string{"<ins>viewer</ins>", "2031-01-03T14:00:00Z"},
		"The secret of token ci",
	},
	{"tokens/ci/revoke", nil, []string{"<del>viewer</del>"}, "The token ci is revoked"},
	{"new/candidates", url.Values{"name": {"july"}}, nil, "The candidate july is open"},
	{
		"candidates/july/policies/{policies}",
		url.Values{"limit": {"500"}},
		[]string{"Update burst of acme", "<ins>500</ins>"},
		"The candidate july is changed",
	},
	{
		"candidates/july/undo",
		url.Values{"policy": {"burst"}, "tenant": {"acme"}, "undo": {"true"}},
		nil, "The candidate july is changed",
	},
	{
		"candidates/july/new-policy",
		url.Values{"name": {"writes"}, "tier": {"gold"}, "limit": {"9"}, "window": {"1m"}},
		[]string{"Create writes of gold"},
		"The candidate july is changed",
	},
	{
		"candidates/july/assign",
		url.Values{"percent": {"5"}, "add": {"acme, globex"}},
		[]string{"<ins>5</ins>", "acme"},
		"is enforced for these tenants",
	},
	{"candidates/july/promote", nil, []string{"Create writes of gold"}, "july is promoted"},
	{"candidates/july/rollback", nil, []string{"Delete writes of gold"}, "july is rolled back"},
	{"new/candidates", url.Values{"name": {"august"}}, nil, "The candidate august is open"},
	{"candidates/august/drop", nil, []string{"<del>open</del>"}, "The candidate august is dropped"},
	{"prices/{prices}/delete", nil, []string{"<del>gpt-4o</del>"}, "The price of gpt-4o is deleted"},
	{"costs/{costs}/delete", nil, []string{"<del>7</del>"}, "is deleted"},
	{"tiers/gold/delete", nil, []string{"<del>pays more</del>"}, "The tier gold is deleted"},
	{"policies/{policies}/delete", nil, []string{"<del>burst</del>"}, "The policy burst is deleted"},
}

// pathOf returns the path of the form of an edit: {table} stands for the last id of its rows.
func (w *realWorld) pathOf(e editing) string {
	w.Helper()
	return home + bracedName.ReplaceAllStringFunc(e.at, func(table string) (id string) {
		table = strings.Trim(table, "{}") // a dry run takes an id too
		require.NoError(w, w.pool.QueryRow(w.Context(), `SELECT max(id)::text FROM rate_limiter.`+table).Scan(&id))
		return id
	})
}

// isNow reports whether the action of a path is previewed when its page opens.
func isNow(at string) bool {
	return strings.HasPrefix(at, "webhooks/") || strings.Contains("delete revoke promote rollback drop rebase end forgive",
		at[strings.LastIndex(at, "/")+1:])
}

// fill returns the form of a page with what is entered, as a browser sends it.
func (w *world) fill(page shown, enter url.Values) url.Values {
	w.Helper()
	form := hiddenFields(page.text)
	for _, in := range formFields(page.text) {
		form[in[0]] = []string{in[1]}
	}
	for name, values := range enter {
		form[name] = values
	}
	form.Set(whyField, "a test")
	return form
}

// formFields returns the names and values of the inputs, the selects and the text areas of a page.
func formFields(page string) (fields [][2]string) {
	for _, tag := range []string{`<input id="`, `<textarea id="`, `<select id="`} {
		for part := range strings.SplitSeq(page, tag) {
			name, rest, isField := strings.Cut(part, `" name="`)
			if !isField || strings.ContainsAny(name, "<> ") {
				continue
			}
			value := ""
			switch tag {
			case `<input id="`:
				_, value, _ = strings.Cut(rest, `value="`)
				value, _, _ = strings.Cut(value, `"`)
			case `<textarea id="`:
				_, value, _ = strings.Cut(rest, ">")
				value, _, _ = strings.Cut(value, "</textarea>")
			default:
				rest, _, _ = strings.Cut(rest, "</select>")
				before, _, isChosen := strings.Cut(rest, `" selected`)
				if isChosen {
					value = before[strings.LastIndex(before, `value="`)+len(`value="`):]
				}
			}
			fields = append(fields, [2]string{name, html.UnescapeString(value)})
		}
	}
	return fields
}

func TestEachWriteIsPreviewedThenApplied(t *testing.T) {
	t.Parallel()
	w := overAPI(t)
	b := w.signedIn(adminSecret)
	written := func() (count int) {
		require.NoError(t, w.pool.QueryRow(t.Context(), `SELECT count(*) FROM rate_limiter.audit`).Scan(&count))
		return count
	}
	for _, e := range edits {
		before, path := written(), w.pathOf(e)
		page := w.want(b.get(path), http.StatusOK, "<h1>")
		form := w.fill(page, e.enter)
		if !isNow(e.at) {
			page = w.want(b.post(path, form), http.StatusOK, "What changes")
			form = hiddenFields(page.text)
			for name, values := range e.enter {
				form[name] = values
			}
		}
		w.want(page, http.StatusOK, e.changes...)
		if now := written(); now != before {
			t.Errorf("a preview of %s writes %d times", e.at, now-before)
		}
		done := b.post(path, form)
		if done.StatusCode == http.StatusSeeOther {
			done = b.get(done.Header.Get("Location"))
		}
		w.want(done, http.StatusOK, e.done)
		if written() == before && !strings.HasSuffix(e.at, "/test") { // which writes no setting
			t.Fatalf("%s writes nothing", e.at)
		}
	}
}

func TestAnEditOfAChangedRowShowsWhatAnotherOperatorWrote(t *testing.T) {
	t.Parallel()
	w := overAPI(t)
	w.write("POST", policiesAPI, `{"name":"daily","tenant":"acme","limit":100,"window":"1d","public_note":"first"}`)
	ann, bob := w.signedIn(adminSecret), w.signedIn(adminSecret)
	const path = "/portal/policies/1/edit"
	first := w.fill(ann.get(path), url.Values{"limit": {"200"}, "public_note": {"second"}})
	second := w.fill(bob.get(path), url.Values{"limit": {"300"}})
	preview := hiddenFields(w.want(bob.post(path, second), http.StatusOK, "<ins>300</ins>").text)
	w.location(ann.post(path, applied(first)))
	for _, late := range []url.Values{second, preview} {
		w.want(bob.post(path, late), http.StatusConflict, "Changed by somebody else", "<del>100</del>", "<ins>200</ins>",
			`id="limit" name="limit" value="300"`, `value="second"`)
	}
	again := w.fill(bob.post(path, preview), nil)
	w.want(bob.post(path, again), http.StatusOK, "<del>200</del>", "<ins>300</ins>")
	w.location(bob.post(path, applied(again)))
	p, err := rows.Read[rows.Policy](t.Context(), w.store, int64(1))
	if err != nil || p.Limit.Limit != 300 || p.PublicNote != "second" {
		t.Errorf("the policy is %+v (%v)", p, err)
	}
	w.write("DELETE", policiesAPI+"/1?reason=r&overwrite=true", "")
	w.want(bob.post(path, again), http.StatusNotFound)

	late := w.fill(bob.get("/portal/new/tiers"), url.Values{"name": {"gold"}, "description": {"mine"}})
	w.write("PUT", tiersAPI+"/gold", `{"description":"another"}`)
	w.want(bob.post("/portal/new/tiers", applied(late)), http.StatusConflict, "<ins>another</ins>", `value="mine"`)
}

func TestTheLinksOfACandidateLeadToItsPolicies(t *testing.T) {
	t.Parallel()
	w := overAPI(t)
	w.write("POST", policiesAPI, `{"name":"daily","tenant":"a&b=c","endpoint":"GET /x","limit":100,"window":"1d"}`)
	w.write("POST", candidatesAPI, `{"name":"july","reason":"r"}`)
	b := w.signedIn(adminSecret)
	w.want(b.get("/portal/new/candidates"), http.StatusOK, `href="/portal/candidates">Back`)
	w.want(b.get("/portal/candidates/july/policies/1"), http.StatusOK, `value="100"`)
	w.write("PUT", candidatesAPI+"/july/policies",
		`{"name":"daily","tenant":"a&b=c","endpoint":"GET /x","limit":50,"window":"1d"}`)
	page := w.want(b.get("/portal/candidates/july"), http.StatusOK, "Update daily of a&amp;b=c at GET /x")
	for _, undo := range []string{"true", ""} {
		_, link, _ := strings.Cut(page.text, `href="/portal/candidates/july/undo?`)
		link, page.text, _ = strings.Cut(link, `"`)
		form := b.get("/portal/candidates/july/undo?" + html.UnescapeString(link))
		w.want(form, http.StatusOK, `value="daily"`, `value="a&amp;b=c"`, `value="GET /x"`)
		if got := strings.Contains(form.text, `value="true" checked`); got != (undo != "") {
			t.Errorf("the link %s takes back a change: %v", link, got)
		}
	}
	unchanged := w.fill(b.get("/portal/candidates/july/policies/1"), nil)
	w.want(b.post("/portal/candidates/july/policies/1", unchanged), http.StatusOK, "Nothing would change.")
}

func TestARowIsTheOneOfItsWholeName(t *testing.T) {
	t.Parallel()
	w := overAPI(t)
	w.write("PUT", tiersAPI+"/gold", `{"description":"pays"}`)
	b := w.signedIn(adminSecret)
	form := w.fill(b.get("/portal/new/tiers"), url.Values{"name": {"go"}, "description": {"another"}})
	w.want(b.post("/portal/new/tiers", form), http.StatusOK, "<ins>go</ins>")
	w.want(b.get("/portal/tiers/go/delete"), http.StatusNotFound)
}

func TestAGuardOfTheAPIAsksForForce(t *testing.T) {
	t.Parallel()
	w := overAPI(t)
	w.write("POST", policiesAPI, `{"name":"each","tier":"free","limit":1000,"window":"1d"}`)
	b := w.signedIn(adminSecret)
	page := b.get("/portal/new/policies")
	w.missing(page, `name="force"`)
	form := w.fill(page, url.Values{
		"name": {"all"}, "for": {"all"}, "scope": {"global"}, "limit": {"5"}, "window": {"1d"},
	})
	w.want(b.post("/portal/new/policies", form), http.StatusUnprocessableEntity, `name="force" value="true"`,
		"query.force")
	form.Set("force", "true")
	page = w.want(b.post("/portal/new/policies", form), http.StatusOK, "<ins>5</ins>")
	w.location(b.post("/portal/new/policies", hiddenFields(page.text)))
}

func TestApplyIsNotPrimaryWhenNothingWouldChange(t *testing.T) {
	t.Parallel()
	w := overAPI(t)
	w.write("POST", policiesAPI, `{"name":"daily","tenant":"acme","user":"u","scope":"user","limit":100,"period":"month",
		"algorithm":"fixed_window","mode":"shadow","fail_mode":"closed","time_zone":"Europe/Berlin","anchor":{"day":15},
		"soft_threshold_pct":80,"settle":{"reserve":5,"sources":[{"from":"header.X-Used"}]},"public_note":"<a & b>"}`)
	w.write("PUT", tiersAPI+"/gold", `{"title":"Gold","description":"pays"}`)
	w.write("PUT", "/v1/orgs/acme", `{"tier":"gold","time_zone":"Europe/Berlin"}`)
	w.write("PUT", costsAPI, `{"endpoint":"POST /exports","cost":50}`)
	w.write("PUT", pricesAPI, `{"model":"gpt-4o","prompt":"1.5","completion":"2"}`)
	w.write("POST", candidatesAPI, `{"name":"july","reason":"r"}`)
	w.write("PUT", candidatesAPI+"/july/policies", `{"name":"daily","tenant":"acme","user":"u","scope":"user","limit":70,
		"period":"month","algorithm":"fixed_window"}`)
	w.write("POST", candidatesAPI+"/july/assign", `{"percent":5,"reason":"r"}`)
	b := w.signedIn(adminSecret)
	for path, field := range map[string]string{
		"policies/1/edit": "limit", "tiers/gold/edit": "title", "tenants/acme/edit": "tier", "costs/1/edit": "cost",
		"prices/1/edit": "prompt", "candidates/july/policies/1": "limit", "candidates/july/assign": "percent",
	} {
		form := w.fill(b.get(home+path), nil)
		w.want(b.post(home+path, form), http.StatusOK, "Nothing would change.", `<button class="quiet">Apply</button>`)
		form.Set(field, "7")
		w.want(b.post(home+path, form), http.StatusOK, `<button>Apply</button>`, "<ins>7</ins>")
	}
	form := w.fill(b.get("/portal/candidates/july/policies/1"), url.Values{
		"limit": {"100"}, "mode": {"shadow"}, "fail_mode": {"closed"}, "time_zone": {"Europe/Berlin"},
		"anchor": {`{"day":15}`}, "soft_threshold_pct": {"80"}, "public_note": {"<a & b>"},
		"settle": {`{"reserve":5,"sources":[{"from":"header.X-Used"}]}`},
	})
	w.want(b.post("/portal/candidates/july/policies/1", form), http.StatusOK, "<del>70</del>", "<ins>100</ins>",
		`<button>Apply</button>`) // as the policy is active, so that the candidate does not change it any more
	form = w.fill(b.get("/portal/tenants/beta/overrides/new"), url.Values{
		"kind": {"custom_limit"}, "policy": {"daily"}, "limit": {"1,000,000"}, "expires_in": {permanently},
	})
	w.want(b.post("/portal/tenants/beta/overrides/new", form), http.StatusOK,
		"Nothing would change: the limits are such already.", `<button class="quiet">Apply</button>`)
}

// examplePath returns the path of a page for rows that may exist.
func examplePath(p *page) string {
	path := strings.NewReplacer("{org}", "acme", "{id}", "1", "{name}", "gold").Replace(p.Pattern)
	return path[strings.Index(path, "/"):]
}

func TestAViewerSeesWhatIsConfiguredAndNoWayToChangeIt(t *testing.T) {
	t.Parallel()
	w := overAPI(t)
	w.write("PUT", tiersAPI+"/gold", `{"description":"pays"}`)
	w.write("POST", candidatesAPI, `{"name":"gold","reason":"r"}`)
	b := w.signedIn(viewerSecret)
	pages := []string{"/portal/candidates", "/portal/candidates/gold"}
	for _, l := range listings {
		pages = append(pages, home+l.At)
	}
	for _, path := range pages {
		w.missing(w.want(b.get(path), http.StatusOK), "/portal/new/", "/edit", "/assign", "/undo", "/revoke")
	}
	for _, p := range actionPages() {
		path := examplePath(&p)
		for _, secret := range []string{viewerSecret, acmeSecret} {
			other := w.signedIn(secret)
			w.want(other.get(path), http.StatusForbidden)
			w.want(other.post(path, applied(url.Values{whyField: {"r"}})), http.StatusForbidden)
		}
	}
}

func TestWhatIsEnteredIntoAFormNeverBecomesMarkup(t *testing.T) {
	t.Parallel()
	w := overAPI(t)
	w.write("POST", policiesAPI, `{"name":"daily","tenant":"acme","limit":100,"window":"1d"}`)
	w.write("PUT", costsAPI, `{"endpoint":"POST /exports","cost":50}`)
	w.write("PUT", pricesAPI, `{"model":"gpt-4o","prompt":"1","completion":"2"}`)
	w.write("POST", "/v1/orgs/acme/ratelimit/webhooks", `{"url":"https://example.com/hook"}`)
	w.write("POST", tokensAPI, `{"name":"gold","role":"viewer","reason":"r"}`)
	w.write("POST", candidatesAPI, `{"name":"gold","reason":"r"}`)
	b, own := w.signedIn(adminSecret), w.signedIn(acmeSecret)
	w.location(b.post("/portal/new/tiers", url.Values{
		applies: {"yes"}, "name": {"gold"}, "description": {hostile}, "reason": {hostile},
	}))
	check := func(page shown) {
		t.Helper()
		if page.StatusCode >= http.StatusInternalServerError {
			t.Errorf("%s: %s", page.Request.URL, page.Status)
		}
		w.missing(page, "<script>alert", "<img", "ZgotmplZ", "style=")
	}
	check(w.want(b.get("/portal/tiers"), http.StatusOK, "&lt;script&gt;"))
	for i := range listings {
		query := url.Values{}
		for name := range strings.FieldsSeq(listings[i].Filters) {
			query.Set(name, hostile)
		}
		check(w.want(b.get(home+listings[i].At), http.StatusOK, "<tbody>"))
		check(b.get(home + listings[i].At + "?" + query.Encode()))
	}
	for _, p := range slices.Concat(actionPages(), pagesOf(ownActions, tenants)) {
		if strings.Contains(p.Pattern, " /portal/org/") {
			b = own
		}
		if !strings.HasPrefix(p.Pattern, "GET") {
			continue
		}
		path := examplePath(&p)
		page := b.get(path)
		check(page)
		form, query := w.fill(page, nil), url.Values{}
		for _, in := range formFields(page.text) {
			form.Set(in[0], hostile)
			query.Set(in[0], hostile)
		}
		form.Del("kind")
		check(b.get(path + "?" + query.Encode()))
		check(b.post(path, form))
		form.Set(began, `{"`+strings.ReplaceAll(hostile, `"`, `\"`)+`":"`+strings.ReplaceAll(hostile, `"`, `\"`)+`"}`)
		check(b.post(path, form))
	}
}

// markups are values of fields that become markup on a page which does not escape them, as the API takes them.
var markups = map[string]string{
	"reason": hostile, "description": hostile, "public_note": hostile, "title": hostile, "price_text": hostile,
	"url": "https://example.com/?" + url.QueryEscape(hostile) + "&<script>alert(1)</script>", "role": "tenant:" + hostile,
	"endpoint": "POST /exports/<script>alert(1)</script>", "model": hostile, "add": hostile, "time_zone": hostile,
}

func TestWhatAFormStoresNeverBecomesMarkup(t *testing.T) {
	t.Parallel()
	w := overAPI(t)
	b := w.signedIn(adminSecret)
	check := func(page shown) shown {
		t.Helper()
		w.missing(page, "<script>alert", "<img", "ZgotmplZ", "style=")
		if page.StatusCode >= http.StatusInternalServerError {
			t.Errorf("%s: %s", page.Request.URL, page.Status)
		}
		return page
	}
	stored, seen := map[string]bool{}, map[string]bool{} // fields, and pages that show one
	for _, e := range edits {
		path := w.pathOf(e)
		page := check(b.get(path))
		form := w.fill(page, e.enter)
		for _, in := range formFields(page.text) {
			name, tried := in[0], maps.Clone(form)
			tried.Set(name, cmp.Or(markups[name], hostile))
			switch {
			case isNow(e.at) && name == whyField:
				form = tried
			case !isNow(e.at) && check(b.post(path, tried)).StatusCode == http.StatusOK && markups[name] != "":
				form, stored[name] = tried, true
			}
		}
		if !isNow(e.at) {
			form = hiddenFields(w.want(check(b.post(path, form)), http.StatusOK, "What changes").text)
		}
		if done := check(b.post(path, form)); done.StatusCode >= http.StatusBadRequest {
			t.Errorf("%s: %s\n%s", path, done.Status, done.text)
		}
		for _, at := range []string{
			"audit", "candidates/july", "tenants/acme", "policies", "tiers", "costs", "prices", "webhooks", "tokens",
		} {
			if strings.Contains(check(b.get(home+at)).text, "&lt;script&gt;") {
				seen[at] = true
			}
		}
	}
	const fields = "add description endpoint model price_text public_note reason role title url"
	require.Equal(t, strings.Fields(fields), slices.Sorted(maps.Keys(stored)))
	const pages = "audit candidates/july costs prices tiers tokens webhooks"
	require.Subset(t, slices.Collect(maps.Keys(seen)), strings.Fields(pages))
}
