package portal

import (
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
)

// ranges are the choice of time of the console, which all its pages keep in their addresses. The first field is also
// what the API calls such a time.
var ranges = []period{
	{"1h", "Hour", "1m", time.Hour, time.Minute},
	{"24h", "Day", "1m", day, 15 * time.Minute},
	{"7d", "Week", "1h", 7 * day, 6 * time.Hour},
	{"30d", "Month", "1d", 30 * day, day},
}

const (
	rangeParameter = "range"
	defaultRange   = 1 // of ranges
)

// rangeOf returns the range that a page shows.
func rangeOf(r *http.Request) period {
	return periodNamed(ranges, r.URL.Query().Get(rangeParameter), defaultRange)
}

// rangeLink leads to the same page with a range.
type rangeLink struct {
	Label, Href string
	IsCurrent   bool
}

func rangeLinks(r *http.Request) (links []rangeLink) {
	query, current := r.URL.Query(), rangeOf(r).Name
	for _, to := range ranges {
		query.Set(rangeParameter, to.Name)
		links = append(links, rangeLink{to.Label, r.URL.EscapedPath() + "?" + query.Encode(), to.Name == current})
	}
	return links
}

// keptRange returns the parameter that the links of a page keep; "": the range is the default, or the page has none.
func keptRange(r *http.Request, caller api.Caller) string {
	name := rangeOf(r).Name
	if caller.Role == api.Tenant || name == ranges[defaultRange].Name {
		return ""
	}
	return rangeParameter + "=" + name
}

// pageLink matches a link or a form of a page until its path or query ends, and getForm the tag of a form whose query
// browsers replace. Only templates write them: in values the quotes are escaped.
var (
	pageLink = regexp.MustCompile(`<(?:a|form) [^>]*(?:href|action)="/portal/[^"#]*`)
	getForm  = regexp.MustCompile(`<form [^>]*method="get"[^>]*>`)
)

// keepRange adds the parameter of a range to all links and forms of a page.
func keepRange(page, parameter string) string {
	if parameter == "" {
		return page
	}
	page = pageLink.ReplaceAllStringFunc(page, func(link string) string { return withRange(link, parameter, "&amp;") })
	_, name, _ := strings.Cut(parameter, "=")
	return getForm.ReplaceAllString(page, `$0<input type="hidden" name="`+rangeParameter+`" value="`+name+`">`)
}

// withRange adds the parameter of a range to a path that has none, where and separates parameters.
func withRange(path, parameter, and string) string {
	path, fragment, found := strings.Cut(path, "#")
	switch {
	case parameter == "" || strings.Contains(path, rangeParameter+"="):
	case strings.Contains(path, "?"):
		path += and + parameter
	default:
		path += "?" + parameter
	}
	if found {
		path += "#" + fragment
	}
	return path
}
