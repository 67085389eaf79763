package policy

import (
	"strconv"
	"strings"
)

// Ref identifies a policy across processes and configs, as usage records it. Two tiers may have policies of one name:
// they count apart, although a tenant that changes its tier goes on in the same bucket.
type Ref struct {
	Name string
	Row  int64 // id of the database row; 0: the policy is in a config

	// Namespace and Tier say which list of a config has the policy; Tier is "" for policies of no tier. A row has neither.
	Namespace, Tier string
}

// Ref returns what identifies the bound's policy.
func (b *Bound) Ref() Ref {
	if b.Policy.Row != 0 {
		return Ref{Name: b.Policy.Name, Row: b.Policy.Row}
	}
	return Ref{Name: b.Policy.Name, Namespace: b.Key.Namespace, Tier: b.Policy.Tier}
}

// String returns the text of a Ref: daily/#12 for a row, else daily/default/enterprise. Neither the name nor the
// namespace of a policy contains a slash. The text of the zero Ref is empty.
func (r Ref) String() string {
	switch {
	case r == Ref{}:
		return ""
	case r.Row != 0:
		return r.Name + "/#" + strconv.FormatInt(r.Row, 10)
	default:
		return r.Name + "/" + r.Namespace + "/" + r.Tier
	}
}

// ParseRef returns the Ref of a text that String has made. Of any other text, Name is what stands before a slash.
func ParseRef(text string) Ref {
	name, list, _ := strings.Cut(text, "/")
	if digits, isRow := strings.CutPrefix(list, "#"); isRow {
		row, _ := strconv.ParseInt(digits, 10, 64) // 0 for a text of another form
		return Ref{Name: name, Row: row}
	}
	namespace, tier, _ := strings.Cut(list, "/")
	return Ref{Name: name, Namespace: namespace, Tier: tier}
}
