package app

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
)

// topText is a refresh as people read it.
func topText(v *topView) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", timeText(v.At), strings.Join(v.fleet(), ", "))
	fmt.Fprintf(&b, "%s requests/s, %s %% denied\n\n", v.Total.Requests, v.Total.DeniedPercent)
	tenantTopTable(&b, v)
	policyTopTable(&b, v)
	nodeTopTable(&b, v.Nodes)
	return b.String()
}

// fleet tells how the nodes are, all together.
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

func tenantTopTable(w io.Writer, v *topView) {
	if len(v.Tenants) == 0 {
		fmt.Fprint(w, "no tenant sends requests, or is near a limit\n\n")
		return
	}
	columns(w, "TENANT|TIER|REQUESTS/S|DENIED/S|DENIED %|NEAREST LIMIT|BUSIEST ENDPOINT", v.Tenants, func(t topTenant) []any {
		return []any{short(t.Tenant), short(t.Tier), t.Traffic.Requests, t.Traffic.Denied, t.Traffic.DeniedPercent, nearestText(t.Nearest), short(t.Endpoint)}
	})
	writeLeft(w, v.MoreTenants, "more tenant")
}

func nearestText(n *nearest) string {
	if n == nil {
		return ""
	}
	return fmt.Sprintf("%s %% of %s", 100*n.Used, short(n.Policy))
}

func policyTopTable(w io.Writer, v *topView) {
	if len(v.Policies) == 0 {
		return
	}
	columns(w, "POLICY|SCOPE|TIER|DENIED/S|WOULD DENY/S", v.Policies, func(p topPolicy) []any {
		return []any{short(p.Policy), short(p.Scope), short(p.Tier), p.Denied, p.ShadowDenied}
	})
	writeLeft(w, v.MorePolicies, "more line")
}

func nodeTopTable(w io.Writer, nodes []topNode) {
	columns(w, "NODE|REQUESTS/S|DENIED %|UNVERIFIED/S|VERSION|AGE|POSTGRES|DEGRADED|NOTE", nodes, func(n topNode) []any {
		requests, denied := any(""), any("")
		if n.Traffic != nil {
			requests, denied = n.Traffic.Requests, n.Traffic.DeniedPercent
		}
		return []any{
			n.Node, requests, denied, ifKnown(n.Unverified), ifKnown(n.Version), ageText(n.Age), ifKnown(n.Connected),
			short(strings.Join(n.Degraded, ", ")), n.note(),
		}
	})
}

// note is what is unusual about a node.
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

// ifKnown is a value in a table that may be unknown.
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

// writeLeft tells what a table does not show, and ends it.
func writeLeft(w io.Writer, n int, thing string) {
	if n > 0 {
		fmt.Fprintf(w, "and %s\n", counted(n, thing))
	}
	fmt.Fprintln(w)
}

// short is a name that leaves room for others in its line.
func short(name string) string { return cut(name, 32) }

// cut is the beginning of a text, in so many characters at most, in one line; … stands for the rest.
func cut(text string, most int) string {
	runes := []rune(plainText(text))
	if len(runes) <= most {
		return string(runes)
	}
	return string(runes[:most-1]) + "…"
}

// writeTopJSON writes a refresh as a document. Its strings are from whoever answers, and may be read on a terminal:
// what one would obey is escaped, which JSON reads as the same.
func writeTopJSON(w io.Writer, v *topView) error {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v)
	if err == nil {
		_, err = io.WriteString(w, escapeUnprintable(b.String()))
	}
	if err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// escapeUnprintable escapes what is no print in a JSON document. Outside of strings that are its newlines only, which
// stay; in strings they are escaped already.
func escapeUnprintable(document string) string {
	var b strings.Builder
	for _, r := range document {
		if unicode.IsPrint(r) || r == '\n' {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.String()
}
