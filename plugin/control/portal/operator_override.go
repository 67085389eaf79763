package portal

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// untilLayout is how browsers send a date with a time.
const untilLayout = "2006-01-02T15:04"

// permanently is the value of expires for an override without an end.
const permanently = "permanent"

// overrideBody returns the override of a form as the API reads it. What is no number stays a text, so that the API
// reports it. Fields of other kinds are left out: a page without JavaScript shows them all.
func overrideBody(form url.Values) map[string]any {
	typed := func(name string) string { return strings.TrimSpace(form.Get(name)) }
	kind, until, expires := typed("kind"), typed("until"), typed("expires")
	body := map[string]any{"kind": kind, "reason": typed("reason")}
	texts := []string{"endpoint", "user", "credential", "ip", "public_note"}
	switch kind {
	case "custom_limit":
		texts = append(texts, "policy", "window")
		setInteger(body, "limit", typed("limit"))
		setInteger(body, "burst", typed("burst"))
	case "multiplier":
		texts = append(texts, "policy", "factor")
	case "topup":
		texts = append(texts, "policy")
		setInteger(body, "amount", typed("amount"))
		expires = "" // it ends with the period
	}
	for _, name := range texts {
		if text := typed(name); text != "" {
			body[name] = text
		}
	}
	switch at, err := time.Parse(untilLayout, until); {
	case until != "" && err == nil:
		body["expires_at"] = at.Format(time.RFC3339)
	case until != "":
		body["expires_at"] = until
	case expires == permanently:
		body["permanent"] = true
	case expires != "":
		body["expires_in"] = expires
	}
	return body
}

// setInteger sets a number that was typed, with or without separators.
func setInteger(body map[string]any, name, text string) {
	if text == "" {
		return
	}
	body[name] = text
	if n, err := strconv.ParseInt(strings.NewReplacer(",", "", " ", "", "_", "").Replace(text), 10, 64); err == nil {
		body[name] = json.Number(strconv.FormatInt(n, 10))
	}
}

// linesOf returns what changes, one sentence for each limit: "acme: daily 1,000 → 2,000 per day until 27 Nov
// 2026 14:00 UTC".
func linesOf(p *answers.OverridePreview, org, endpoint string) []string {
	end := "for good"
	if !p.End.IsZero() {
		end = "until " + minuteTime(p.End)
	}
	if !p.Begin.IsZero() {
		end = "from " + minuteTime(p.Begin) + " " + end
	}
	at := ""
	if endpoint != "" {
		at = " to " + endpoint
	}
	switch p.Verdict {
	case "banned":
		return []string{fmt.Sprintf("%s: all requests%s are denied %s", org, at, end)}
	case "exempt":
		return []string{fmt.Sprintf("%s: no limit applies to requests%s %s", org, at, end)}
	}
	var lines []string
	for i := range p.Changes {
		lines = append(lines, fmt.Sprintf("%s: %s %s", org, changeWords(&p.Changes[i]), end))
	}
	return lines
}

// changeWords returns a change of a limit: "daily 1,000 → 2,000 per day".
func changeWords(c *answers.LimitChange) string {
	name := c.Policy
	if c.Endpoint != "" {
		name += " at " + c.Endpoint
	}
	before, after := amountWords(c.Before.Limit, c.Unit), amountWords(c.After.Limit, c.Unit)+" "+perWords(c.After.Window)
	if c.Before.WindowSize != c.After.WindowSize {
		before += " " + perWords(c.Before.Window)
	}
	text := fmt.Sprintf("%s %s → %s", name, before, after)
	if c.Before.Burst != c.Before.Limit || c.After.Burst != c.After.Limit {
		text += fmt.Sprintf(", at once %s → %s", amountWords(c.Before.Burst, c.Unit),
			amountWords(c.After.Burst, c.Unit))
	}
	return text
}

type overrideView struct {
	Org      string
	Form     url.Values
	Policies []string
	Problem  *problem

	Previewed bool
	Apply     url.Values // the form with the end that the preview shows, and a key, so that it counts once if sent twice
	Lines     []string
	Preview   answers.OverridePreview
	NoPreview string
}

// readPolicies reads the names of the policies that an override can change.
func (o *overrideView) readPolicies(v *visit) error {
	var limits answers.InForce
	_, err := unavailable(v.get(orgAPI(o.Org, "/ratelimit/policies"), url.Values{"limit": {"200"}}, &limits))
	o.Policies = policiesOf(limits.Limits)
	return err
}

func serveNewOverride(v *visit) error {
	o := &overrideView{Org: v.org(), Form: url.Values{
		"kind":    {cmp.Or(v.r.URL.Query().Get("kind"), "custom_limit")},
		"expires": {"1d"}, "policy": {v.r.URL.Query().Get("policy")},
	}}
	if err := o.readPolicies(v); err != nil {
		return err
	}
	return v.render("operator_override", "New override", o)
}

// previewOverride shows what the override of a form would change, beside the form.
func previewOverride(v *visit) error {
	o := &overrideView{Org: v.org(), Form: v.r.PostForm}
	if err := o.readPolicies(v); err != nil {
		return err
	}
	err := v.send(http.MethodPost, orgAPI(o.Org, "/ratelimit/overrides/preview"), overrideBody(o.Form), &o.Preview)
	if o.NoPreview, err = unavailable(err); err != nil {
		return v.renderFault(err, &o.Problem, "operator_override", "New override", o)
	}
	o.Previewed = true
	o.Lines = linesOf(&o.Preview, o.Org, strings.TrimSpace(o.Form.Get("endpoint")))
	o.Apply = maps.Clone(o.Form)
	o.Apply.Set("key", rand.Text())
	if end := o.Preview.End; !end.IsZero() {
		o.Apply.Set("until", end.UTC().Format(time.RFC3339Nano)) // the end that was shown, however long the reader takes
	}
	return v.render("operator_override", "Preview of an override", o)
}

// createOverride makes the override of a form, and waits a moment for the nodes.
func createOverride(v *visit) error {
	o := &overrideView{Org: v.org(), Form: v.r.PostForm}
	var done struct {
		Override struct {
			ID int64 `json:"id"`
		} `json:"override"`
		answers.Written
	}
	var header []string
	if key := o.Form.Get("key"); key != "" {
		header = []string{"Idempotency-Key", key}
	}
	path := orgAPI(o.Org, "/ratelimit/overrides?wait="+waitForNodes)
	if err := v.send(http.MethodPost, path, overrideBody(o.Form), &done, header...); err != nil {
		if err := o.readPolicies(v); err != nil {
			return err
		}
		return v.renderFault(err, &o.Problem, "operator_override", "New override", o)
	}
	return v.redirect(tenantPath(o.Org, ""), noticeOf(&done.Written, fmt.Sprintf("Override %d is made", done.Override.ID)))
}

// serveEnd shows the override in the path, which would end, and takes the reason. A POST ends it.
func serveEnd(v *visit) error {
	e := struct {
		Org, ID, Reason string
		Override        struct {
			answers.Override
			State string `json:"state"`
		}
		Problem *problem
	}{Org: v.org(), ID: v.r.PathValue("id"), Reason: strings.TrimSpace(v.r.PostFormValue("reason"))}
	path := orgAPI(e.Org, "/ratelimit/overrides/"+answers.PathSegment(e.ID))
	if err := v.get(path, nil, &e.Override); err != nil {
		return err
	}
	if v.r.Method != http.MethodPost {
		return v.render("operator_end", "End an override", &e)
	}
	var done answers.Written
	query := url.Values{"reason": {e.Reason}, "wait": {waitForNodes}}
	if err := v.send(http.MethodDelete, path+"?"+query.Encode(), nil, &done); err != nil {
		return v.renderFault(err, &e.Problem, "operator_end", "End an override", &e)
	}
	return v.redirect(tenantPath(e.Org, ""), noticeOf(&done, "Override "+e.ID+" has ended"))
}
