package portal

import (
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// tenantActions are about one tenant.
var tenantActions = []action{
	{
		At: "tenants/{org}/overrides/new", Title: "New override: {org}", Write: "POST /v1/orgs/{org}/ratelimit/overrides",
		Row: "override", Done: "Override {id} is made", To: "tenants/{org}",
		Fields: "kind! policy:custom_limit,multiplier,topup limit:custom_limit factor:multiplier amount:topup " +
			"expires_in!:custom_limit,multiplier,ban,exempt expires_at:custom_limit,multiplier,ban,exempt reason | " +
			"window:custom_limit burst:custom_limit endpoint user credential ip public_note",
		Complete: endOverride, Preview: previewOverride,
	},
	{
		At: "tenants/{org}/overrides/{id}/end", Title: "End override {id}: {org}", Button: "End the override",
		Write: "DELETE /v1/orgs/{org}/ratelimit/overrides/{id}", Read: "/v1/orgs/{org}/ratelimit/overrides/{id}",
		Fields: whyField + "!", Done: "Override {id} has ended", To: "tenants/{org}", Now: true, Danger: true,
	},
	{
		At: "tenants/{org}/forgive", Title: "Forgive {org}", Write: "POST /v1/orgs/{org}/ratelimit/abuse/forgive",
		Read: "/v1/orgs/{org}/ratelimit/abuse", Fields: "for reason", Button: "Forgive", To: "abuse", Now: true,
		Done: "{org} is forgiven: it leaves its step, and its penalty has ended",
	},
	{
		At: "tenants/{org}/edit", Title: "Tier and time zone of {org}", Write: "PUT /v1/orgs/{org}",
		Read: "/v1/orgs/{org}", Row: "org", Fields: "tier time_zone reason!", Done: "{org} is changed", To: "tenants/{org}",
	},
}

// permanently is the choice of an override without an end.
const permanently = "permanent"

// endOverride sets when an override ends: at an instant if one is given. A top-up ends with the period.
func endOverride(body map[string]any) {
	if body["expires_in"] == permanently {
		body["permanent"] = true
	}
	if body["permanent"] == true || body["expires_at"] != nil {
		delete(body, "expires_in")
	}
	if body["expires_at"] != nil {
		delete(body, "permanent")
	}
}

// fieldChoices are the values of fields that the API takes as texts. The first one of a required field is the default.
var fieldChoices = map[string][]choice{
	kindField: {
		{"custom_limit", "another limit"},
		{"multiplier", "limits times a factor"},
		{"topup", "more until the period ends (top-up)"},
		{"ban", "deny all requests"},
		{"exempt", "admit all requests"},
	},
	"expires_in": {
		{"1d", "1 day"},
		{"1h", "1 hour"},
		{"4h", "4 hours"},
		{"3d", "3 days"},
		{"7d", "7 days"},
		{"30d", "30 days"},
		{permanently, "without an end"},
	},
	"types": operatorEvents,
}

// choose sets the choices of the fields that have some. Those of an override's policy are the tenant's, if the API
// knows them.
func (f *form) choose(v *visit) error {
	for _, in := range f.Fields {
		list := fieldChoices[in.Name]
		if v.caller.Org != "" {
			list = ownChoices[in.Name]
		}
		if in.Name == "policy" && v.org() != "" {
			var limits answers.InForce
			_, err := unavailable(v.get(orgAPI(v.org(), "/ratelimit/policies"), url.Values{"limit": {"200"}}, &limits))
			if err != nil {
				return err
			}
			for _, name := range policiesOf(limits.Limits) {
				list = append(list, choice{Value: name})
			}
		}
		if list != nil {
			in.choose(list, f.values.Get(in.Name))
		}
		switch in.Name {
		case kindField:
			in.Hint = "" // the choices say it
		case "expires_in":
			if f.field("expires_at") != nil {
				in.Hint = "Unless Expires at has a time"
			}
		}
	}
	return nil
}

// previewOverride shows which limits the override of a form would change.
func previewOverride(f *form, v *visit) error {
	var p answers.OverridePreview
	err := v.send(http.MethodPost, orgAPI(v.org(), "/ratelimit/overrides/preview"), f.body(), &p)
	why, err := unavailable(err)
	if err != nil || why != "" {
		f.Note = "This process cannot show it: " + why
		return err
	}
	f.Warnings, f.Changes = p.Warnings.Warnings, []policyChange{}
	if f.Lines = linesOf(&p, v.org(), f.values.Get("endpoint")); len(f.Lines) == 0 {
		f.Note = "Nothing would change: " + p.Why + "."
		if p.Applied {
			f.Note = "Nothing would change: the limits are such already."
		}
	}
	if !p.End.IsZero() { // the end that was shown, however long the reader takes
		f.Apply.Set("expires_at", p.End.UTC().Format(time.RFC3339Nano))
	}
	return nil
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
