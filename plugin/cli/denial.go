package cli

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// requestIDFlag defines --request-id.
func (c *call) requestIDFlag() *string {
	return c.flags.String("request-id", "", "show what denied the request of this `id`, the X-Kong-Request-Id of its "+
		"response, and what would have admitted it")
}

// showRequest shows what denied a request.
func (c *call) showRequest(ctx context.Context, rest *answers.Client, id string, query url.Values) error {
	var found answers.DenialList
	if err := rest.Get(ctx, denialsPath+"/"+pathSegment(id), query, &found); err != nil {
		return err
	}
	return c.print(found.Denials, func(out *page) {
		for i := range found.Denials {
			if i > 0 {
				out.gap()
			}
			new(grid).add(out, aboutDenial(&found.Denials[i]))
		}
	})
}

// aboutDenial returns lines with a title and a text.
func aboutDenial(d *answers.Denial) [][]string {
	when, why, limit, source := timeText(d.At), d.Reason, d.Policy, "config"
	if d.Count > 1 {
		when += fmt.Sprintf(", the last of %d denials; all else is of one of the last", d.Count)
	}
	if d.Shadow {
		why += ", in shadow: the request was admitted"
	}
	if numbers := denialLimit(d); numbers != "" {
		limit += ": " + numbers
	}
	if d.PolicyID != nil || d.Policy == "" {
		source = ""
	}
	lines := [][]string{
		{"WHEN", when},
		{"WHO", labelled("tenant", orDefault(d.Org, "(none)"), "tier", d.Tier, "user", d.User, "address", d.IPHash)},
		{"ENDPOINT", d.Endpoint},
		{"LIMIT", labelled("", limit, "scope", d.Scope)},
		{"FROM", labelled("", source, "row", orNone(d.PolicyID), "", d.PolicyFor, "rows of version", orNone(d.PolicyVersion),
			"override", orNone(d.Override), "penalty", orNone(d.Penalty))},
		{"LEFT", labelled("", orNone(d.Remaining), "and the request cost", orNone(d.Cost))},
		{"WHY", why},
		{"WOULD ADMIT IT", d.WouldAdmit},
	}
	for _, line := range lines {
		line[1] = cellText(line[1])
	}
	return lines
}

// labelled lists values, each behind its label. It leaves out empty ones.
func labelled(pairs ...string) string {
	var parts []string
	for pair := range slices.Chunk(pairs, 2) {
		if pair[1] != "" {
			parts = append(parts, strings.TrimSpace(pair[0]+" "+pair[1]))
		}
	}
	return strings.Join(parts, ", ")
}

// orNone returns a number as text, "" for none.
func orNone(n *int64) string {
	if n == nil {
		return ""
	}
	return strconv.FormatInt(*n, 10)
}
