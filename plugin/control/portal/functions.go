package portal

import (
	"fmt"
	"html/template"
	"math"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// functions returns the functions of templates.
func functions() template.FuncMap {
	return template.FuncMap{
		"number":  number,
		"percent": percent,
		"when":    when,
		"segment": pathSegment,
		"dict":    dict,
		"pairs":   pairs,

		"limitWords": func(l answers.LimitInForce, who string) string { return limitWords(&l, who) },
		"spanWords":  spanWords, "denialWords": denialWords, "overrideWords": overrideWords,
		"level": usageLevel, "deliveryLevel": func(state string) string { return deliveryLevels[state] }, "events": eventsOf,
	}
}

// number returns an integer, or the one that a pointer is to, with separators between thousands: 1,234,567.
func number(value any) (string, error) {
	if n := reflect.Indirect(reflect.ValueOf(value)); n.CanInt() {
		return thousands(n.Int()), nil
	}
	return "", fmt.Errorf("%T is not an integer", value)
}

// percent returns a share from 0 to 1 as percent.
func percent(share float64) string {
	return strconv.FormatFloat(math.Round(share*1000)/10, 'f', -1, 64) + " %"
}

// when returns an instant as a time element, in UTC: a time.Time, a *time.Time, or text of RFC 3339. Without an instant
// it is a dash.
func when(value any) (template.HTML, error) {
	var at time.Time
	switch t := value.(type) {
	case time.Time:
		at = t
	case *time.Time:
		if t != nil {
			at = *t
		}
	case string:
		if t != "" {
			parsed, err := time.Parse(time.RFC3339, t)
			if err != nil {
				return "", fmt.Errorf("show a time: %w", err)
			}
			at = parsed
		}
	default:
		return "", fmt.Errorf("%T is not a time", value)
	}
	if at.IsZero() {
		return "–", nil
	}
	at = at.UTC()
	text := `<time datetime="` + at.Format(time.RFC3339) + `">` + at.Format("2006-01-02 15:04:05") + ` UTC</time>`
	return template.HTML(text), nil // #nosec G203 -- digits only
}

// pairs returns texts two by two, such as the values and labels of a select.
func pairs(texts ...string) [][]string { return slices.Collect(slices.Chunk(texts, 2)) }

// dict returns a map of pairs, to pass several values to a template.
func dict(pairs ...any) (map[string]any, error) {
	if len(pairs)%2 != 0 {
		return nil, fmt.Errorf("dict has %d arguments: it needs pairs", len(pairs))
	}
	m := make(map[string]any, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		name, ok := pairs[i].(string)
		if !ok {
			return nil, fmt.Errorf("dict: %v is not a name", pairs[i])
		}
		m[name] = pairs[i+1]
	}
	return m, nil
}
