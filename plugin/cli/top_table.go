package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// topText returns a refresh as people read it.
func topText(v *topView) string {
	out := new(page)
	out.line("%s: %s", timeText(v.At), strings.Join(v.fleet(), ", "))
	out.line("%s requests/s, %s %% denied", v.Total.Requests, v.Total.DeniedPercent)
	out.gap()
	tenantTopTable(out, v)
	policyTopTable(out, v)
	nodeTopTable(out, v.Nodes)
	return out.text.String()
}

// fleet writes the state of all nodes together.
func (v *topView) fleet() []string {
	var versions []int64
	degraded := 0
	for i := range v.Nodes {
		if n := &v.Nodes[i]; n.Version != nil {
			versions = append(versions, *n.Version)
		}
		if len(v.Nodes[i].Degraded) > 0 {
			degraded++
		}
	}
	texts := []string{fmt.Sprintf("%d of %s answering", v.answering(), counted(len(v.Nodes), "node"))}
	if degraded > 0 {
		texts = append(texts, fmt.Sprintf("%d degraded", degraded))
	}
	if len(versions) > 0 {
		least, most := slices.Min(versions), slices.Max(versions)
		if least == most {
			return append(texts, fmt.Sprintf("version %d", most))
		}
		texts = append(texts, fmt.Sprintf("versions %d to %d", least, most))
	}
	return texts
}

func tenantTopTable(out *page, v *topView) {
	if len(v.Tenants) == 0 {
		out.line("no requests, and no tenant is near a limit")
		out.gap()
		return
	}
	columns(
		out,
		"TENANT|TIER|REQUESTS/S|DENIED/S|DENIED %|NEAREST LIMIT|BUSIEST ENDPOINT",
		v.Tenants,
		func(t topTenant) []any {
			return []any{
				short(t.Tenant),
				short(t.Tier),
				t.Traffic.Requests,
				t.Traffic.Denied,
				t.Traffic.DeniedPercent,
				nearestText(t.Nearest),
				short(t.Endpoint),
			}
		},
	)
	writeLeft(out, v.MoreTenants, "more tenant")
}

func nearestText(n *nearest) string {
	if n == nil {
		return ""
	}
	return fmt.Sprintf("%s %% of %s", 100*n.Used, short(n.Policy))
}

func policyTopTable(out *page, v *topView) {
	if len(v.Policies) == 0 {
		return
	}
	columns(out, "POLICY|SCOPE|TIER|DENIED/S|WOULD DENY/S", v.Policies, func(p topPolicy) []any {
		return []any{short(p.Policy), short(p.Scope), short(p.Tier), p.Denied, p.ShadowDenied}
	})
	writeLeft(out, v.MorePolicies, "more line")
}

func nodeTopTable(out *page, nodes []topNode) {
	columns(out, "NODE|REQUESTS/S|DENIED %|UNVERIFIED/S|VERSION|AGE|POSTGRES|DEGRADED|NOTE", nodes, func(n topNode) []any {
		requests, denied := any(""), any("")
		if n.Traffic != nil {
			requests, denied = n.Traffic.Requests, n.Traffic.DeniedPercent
		}
		return []any{
			n.Node, requests, denied, ifKnown(n.Unverified), ifKnown(n.Version), ageText(n.Age),
			red(ifKnown(n.Connected), n.Connected != nil && !*n.Connected),
			red(short(strings.Join(n.Degraded, ", ")), len(n.Degraded) > 0), red(n.note(), n.Error != ""),
		}
	})
}

// note returns what is unusual about a node.
func (n *topNode) note() string {
	switch {
	case n.Error != "":
		return cut(n.Error, 80)
	case n.Restarted:
		return "restarted"
	case n.Traffic == nil:
		return "first answer"
	}
	return ""
}

// ifKnown returns a value for a table, or an empty text for nil.
func ifKnown[T any](value *T) any {
	if value == nil {
		return ""
	}
	return *value
}

func ageText(age *rate) string {
	if age == nil {
		return ""
	}
	return time.Duration(min(float64(*age), maxSpan.Seconds()) * float64(time.Second)).Round(time.Second).String()
}

// writeLeft writes what a table does not show, and ends it.
func writeLeft(out *page, n int, thing string) {
	if n > 0 {
		out.line("and %s", counted(n, thing))
	}
	out.gap()
}

// short returns a name that leaves room for others in its line.
func short(name string) string { return cut(name, 32) }

// cut returns the beginning of a text, in so many characters at most, in one line; … stands for what is cut off.
func cut(text string, most int) string {
	runes := []rune(plainText(text))
	if len(runes) <= most {
		return string(runes)
	}
	return string(runes[:most-1]) + "…"
}
