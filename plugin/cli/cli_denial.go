package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

// answeredDenial is a recent denial with what follows from it.
type answeredDenial struct {
	pgstore.RecentDenial
	RetryAt    *time.Time `json:"retry_at,omitempty"`
	WouldAdmit string     `json:"would_admit,omitempty"`
}

// answered returns denials with what follows from each.
func answered(list []pgstore.RecentDenial) []answeredDenial {
	all := []answeredDenial{}
	for _, d := range list {
		all = append(all, answeredDenial{d, d.RetryAt(), d.WouldAdmit()})
	}
	return all
}

// requestIDFlag defines --request-id.
func (c *call) requestIDFlag() *string {
	return c.flags.String("request-id", "", "show what denied the request of this `id`, the X-Kong-Request-Id of its "+
		"response, and what would have admitted it")
}

// showRequest shows what denied the request of f.
func (c *call) showRequest(ctx context.Context, s *pgstore.Store, f pgstore.DenialFilter) error {
	list, err := s.DenialsOf(ctx, f)
	if err != nil {
		return err
	}
	return c.print(answered(list), func(out *page) {
		for i := range list {
			if i > 0 {
				out.gap()
			}
			new(grid).add(out, aboutDenial(&list[i]))
		}
	})
}

// aboutDenial returns lines with a title and a text.
func aboutDenial(d *pgstore.RecentDenial) [][]string {
	when := timeText(d.At)
	if d.Count > 1 {
		when += fmt.Sprintf(", the last of %d denials; all else is of one of the last", d.Count)
	}
	why := d.Reason
	if d.Shadow {
		why += ", in shadow: the request was admitted"
	}
	lines := [][]string{{"WHEN", when}, {"WHO", whoWas(d)}, {"ENDPOINT", orDefault(d.Endpoint, "(none)")}}
	if d.Policy != "" {
		lines = append(lines, []string{"LIMIT", limitOf(d)}, []string{"FROM", originOf(d)})
	}
	if d.Remaining != nil && d.Cost != nil {
		lines = append(lines, []string{"LEFT", fmt.Sprintf("%d, and the request cost %d", *d.Remaining, *d.Cost)})
	}
	lines = append(lines, []string{"WHY", why}, []string{"WOULD ADMIT IT", orDefault(d.WouldAdmit(), "(unknown)")})
	for _, line := range lines {
		line[1] = plainText(line[1])
	}
	return lines
}

// whoWas returns whom a denied request was from.
func whoWas(d *pgstore.RecentDenial) string {
	who := []string{"no tenant"}
	if d.Tenant != "" {
		who[0] = "tenant " + d.Tenant
	}
	for _, part := range [][2]string{{"tier", d.Tier}, {"user", d.User}, {"address", d.IP}} {
		if part[1] != "" {
			who = append(who, part[0]+" "+part[1])
		}
	}
	return strings.Join(who, ", ")
}

// limitOf returns the name of the limit that denied, and how much it allows.
func limitOf(d *pgstore.RecentDenial) string {
	text := d.Policy
	if d.Limit != nil && d.WindowSize != nil {
		text += ": " + perWindow(*d.Limit, *d.WindowSize)
	}
	if d.Scope != "" {
		text += ", scope " + d.Scope
	}
	return text
}

// originOf returns where the limit that denied is defined, and what changed it.
func originOf(d *pgstore.RecentDenial) string {
	text := "config"
	if d.PolicyID != nil {
		text = fmt.Sprint("row ", *d.PolicyID)
	}
	if d.PolicyFor != "" {
		text += ", " + d.PolicyFor
	}
	for _, part := range []struct {
		name string
		id   *int64
	}{{"rows of version", d.PolicyVersion}, {"override", d.Override}, {"penalty", d.Penalty}} {
		if part.id != nil {
			text += fmt.Sprintf(", %s %d", part.name, *part.id)
		}
	}
	return text
}
