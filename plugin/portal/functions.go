package portal

import (
	"fmt"
	"html/template"
	"math"
	"strconv"
	"strings"
	"time"
)

// functions returns the functions of templates.
func functions() template.FuncMap {
	return template.FuncMap{
		"number":   number,
		"percent":  percent,
		"when":     when,
		"duration": duration,
		"segment":  pathSegment,
		"dict":     dict,
	}
}

// number returns a number with separators between thousands: 1,234,567.
func number(value any) (string, error) {
	text, err := plainNumber(value)
	if err != nil {
		return "", err
	}
	whole, fraction, hasFraction := strings.Cut(text, ".")
	sign := ""
	if strings.HasPrefix(whole, "-") {
		sign, whole = "-", whole[1:]
	}
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if hasFraction {
		whole += "." + fraction
	}
	return sign + whole, nil
}

// plainNumber returns a number without separators. Fractions have two digits at most.
func plainNumber(value any) (string, error) {
	switch n := value.(type) {
	case int:
		return strconv.Itoa(n), nil
	case int32:
		return strconv.FormatInt(int64(n), 10), nil
	case int64:
		return strconv.FormatInt(n, 10), nil
	case uint64:
		return strconv.FormatUint(n, 10), nil
	case float64:
		if math.IsNaN(n) || math.IsInf(n, 0) {
			return "", fmt.Errorf("%v is not a number that a page can show", n)
		}
		return strconv.FormatFloat(math.Round(n*100)/100, 'f', -1, 64), nil
	}
	return "", fmt.Errorf("%T is not a number", value)
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

// duration returns a number of seconds in words: "1 minute", "24 hours", "1h1m1s".
func duration(value any) (string, error) {
	text, err := plainNumber(value)
	if err != nil {
		return "", err
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return "", fmt.Errorf("show a duration: %w", err)
	}
	for _, unit := range []struct {
		name string
		size float64
	}{{"day", 86400}, {"hour", 3600}, {"minute", 60}} {
		if n := seconds / unit.size; n >= 1 && n == math.Trunc(n) && (unit.name != "day" || n > 1) {
			return counted(n, unit.name), nil
		}
	}
	if seconds < 120 {
		return counted(seconds, "second"), nil
	}
	return time.Duration(seconds * float64(time.Second)).Round(time.Second).String(), nil
}

func counted(n float64, unit string) string {
	text := strconv.FormatFloat(n, 'f', -1, 64) + " " + unit
	if n != 1 {
		text += "s"
	}
	return text
}

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
