package portal

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/calendar"
)

// templateFiles are parsed as templates. A file is a page, named by the file without .html, or has parts of pages.
//
//go:embed templates/*.html
var templateFiles embed.FS

// layout is what surrounds a page.
type layout struct {
	Title, Path string
	Section     string // the path of the page of Nav that this one is, or is below; "": none
	Caller      api.Caller
	Nav         []page
	Notice      notice
	Brand       Brand
	Logo, Style string        // the names of assets of the brand; "": none
	Range       string        // the parameter that links keep, or ""
	Ranges      []rangeLink   // of a page that shows a range
	Body        template.HTML // rendered by a template
}

// layout returns the surroundings of a page for a caller, or for none.
func (p *Portal) layout(r *http.Request, caller api.Caller, title string) *layout {
	l := &layout{Title: title, Path: r.URL.Path, Caller: caller, Range: keptRange(r, caller)}
	l.Brand, l.Logo, l.Style = p.Brand, p.logo, p.style
	below := strings.Replace(r.URL.Path, "/new/", "/", 1) + "/"
	for i := range listings {
		if strings.HasPrefix(below, home+listings[i].At+"/") {
			below = home + listings[0].At + "/"
		}
	}
	for _, to := range pages() {
		if to.Pattern == r.Pattern && to.Ranged {
			l.Ranges = rangeLinks(r)
		}
		isOrgHome := caller.Role == api.Tenant && to.Path() == home // leads to the page of the org, which has a link
		if to.Nav != "" && slices.Contains(to.For, caller.Role) && !isOrgHome {
			l.Nav = append(l.Nav, to)
			if strings.HasPrefix(below, to.Path()+"/") {
				l.Section = to.Path()
			}
		}
	}
	return l
}

// show answers with a template inside the layout. It writes nothing before all is rendered.
func (p *Portal) show(w http.ResponseWriter, status int, name string, l *layout, data any) error {
	body, err := p.fragment(name+".html", data)
	if err != nil {
		return err
	}
	l.Body = body
	var page bytes.Buffer
	if err := p.templates.ExecuteTemplate(&page, "layout.html", l); err != nil {
		return fmt.Errorf("render the layout: %w", err)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	text := keepRange(page.String(), l.Range)
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text) // the client may have disconnected
	return nil
}

// fragment renders a template alone.
func (p *Portal) fragment(name string, data any) (template.HTML, error) {
	var text bytes.Buffer
	if err := p.templates.ExecuteTemplate(&text, name, data); err != nil {
		return "", fmt.Errorf("render %s: %w", name, err)
	}
	return template.HTML(text.String()), nil // #nosec G203 -- a template has escaped it
}

//go:embed assets
var assetFiles embed.FS

// assetsPath is where the files are that pages load. It has a hash of them, so browsers may keep them forever.
var assetsPath = home + "assets/" + assetsHash() + "/"

func assetsHash() string {
	sum := sha256.New()
	files, err := fs.Glob(assetFiles, "assets/*")
	for _, file := range files {
		text, failed := assetFiles.ReadFile(file)
		err = cmp.Or(err, failed)
		_, _ = sum.Write(text) // never fails
	}
	if err != nil {
		panic(err) // the files are part of the program
	}
	return hex.EncodeToString(sum.Sum(nil)[:6])
}

func (p *Portal) serveAsset(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	content, err := p.files[name], error(nil)
	if content == nil {
		content, err = assetFiles.ReadFile("assets/" + name)
	}
	if err != nil {
		p.showProblem(w, r, api.Caller{}, &problem{Status: http.StatusNotFound})
		return
	}
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(content))
}

func functions(now func() time.Time) template.FuncMap {
	return template.FuncMap{
		"asset":   func(file string) string { return assetsPath + file },
		"number":  number,
		"percent": percent,
		"share":   share,
		"rate":    rateWords,
		"when":    when,
		"ago":     func(at any) (template.HTML, error) { return relative(at, now(), time.UTC) },
		"resets":  func(b answers.BucketUsage) (template.HTML, error) { return resets(b, now()) },
		"path":    pathWords,
		"ahead":   func(at time.Time) bool { return at.After(now()) },
		"segment": answers.PathSegment,
		"dict":    dict,
		"pairs":   pairs,

		"limitWords": func(l answers.LimitInForce, who string) string { return limitWords(&l, who) },
		"spanWords":  spanWords, "denialWords": denialWords, "endpointWords": endpointWords, "trend": trend,
		"overrideWords": overrideWords,
		"diff":          diffJSON, "level": usageLevel,
		"deliveryLevel": func(state string) string { return deliveryLevels[state] },
		"policyWords":   policyWords, "policyKey": func(p answers.Policy) template.URL { return keyQuery(&p) },
		"events": eventsOf, "amount": amount,
	}
}

// number returns an integer, or the one that a pointer is to, with separators between thousands: 1,234,567.
func number(value any) (string, error) { return amount(value, "") }

// amount returns an amount of a limit, or the one that a pointer is to, in its unit.
func amount(value any, unit string) (string, error) {
	if n := reflect.Indirect(reflect.ValueOf(value)); n.CanInt() {
		return amountWords(n.Int(), unit), nil
	}
	return "", fmt.Errorf("%T is not an integer", value)
}

// amountWords returns an amount of a limit: dollars where its unit is usd.
func amountWords(n int64, unit string) string {
	if unit == "" {
		return humanize.Comma(n)
	}
	return answers.Amount(n, unit)
}

// percent returns a share from 0 to 1 as percent.
func percent(share float64) string {
	return strconv.FormatFloat(math.Round(share*1000)/10, 'f', -1, 64) + " %"
}

// share returns which part of both is the first, as percent.
func share(part, rest int64) string {
	if part == 0 {
		return "0 %"
	}
	return percent(float64(part) / (float64(part) + float64(rest)))
}

// rateWords returns a rate with two digits at least: 0.03, 1.2, 1,234.
func rateWords(perSecond float64) string {
	switch {
	case perSecond >= 100:
		return humanize.Comma(int64(perSecond + 0.5))
	case perSecond >= 1 || perSecond == 0:
		return strconv.FormatFloat(math.Round(perSecond*10)/10, 'f', -1, 64)
	}
	return strconv.FormatFloat(perSecond, 'g', 2, 64)
}

// instant returns a time.Time, or the one that a pointer is to; zero: there is none.
func instant(value any) (at time.Time, err error) {
	switch t := value.(type) {
	case time.Time:
		at = t
	case *time.Time:
		if t != nil {
			at = *t
		}
	default:
		err = fmt.Errorf("%T is not a time", value)
	}
	return at.UTC(), err
}

// when returns an instant as a time element, in UTC. Without an instant it is a dash.
func when(value any) (template.HTML, error) {
	at, err := instant(value)
	if err != nil || at.IsZero() {
		return "–", err
	}
	text := `<time datetime="` + at.Format(time.RFC3339) + `">` + at.Format("2006-01-02 15:04:05") + ` UTC</time>`
	return template.HTML(text), nil // #nosec G203 -- digits only
}

// relative returns how far an instant is from now, as a time element that names the instant in a time zone. The script
// of pages adds that of the reader, and follows the clock.
func relative(value any, now time.Time, zone *time.Location) (template.HTML, error) {
	at, err := instant(value)
	if err != nil || at.IsZero() {
		return "–", err
	}
	away, text := at.Sub(now), "now"
	for i, u := range units {
		n := int64(away.Abs()/time.Second) / u.seconds
		if n == 0 {
			continue
		}
		text = fmt.Sprintf("%d %s ago", n, [...]string{"d", "h", "min", "s"}[i])
		if away > 0 {
			text = "in " + strings.TrimSuffix(text, " ago")
		}
		break
	}
	return template.HTML(fmt.Sprintf( // #nosec G203 -- digits, and the name of a zone that exists
		`<time datetime="%s" title="%s %s" data-relative>%s</time>`, at.Format(time.RFC3339),
		at.In(zone).Format("2006-01-02 15:04:05"), zone, text)), nil
}

// resets returns how far it is until a bucket is full again, or its window ends. The end of a period is named in its
// time zone.
func resets(b answers.BucketUsage, now time.Time) (template.HTML, error) {
	if b.MaxDuration != 0 {
		return "as requests end", nil
	}
	zone, err := calendar.Location(b.TimeZone)
	if b.Period == "" || err != nil {
		zone = time.UTC
	}
	return relative(b.Reset, now, zone)
}

// pathWords returns a path or a URL, which may be broken behind a slash if it is long.
func pathWords(path string) template.HTML {
	const long = 32
	text := template.HTMLEscapeString(path)
	if len(path) > long {
		text = strings.ReplaceAll(text, "/", "/<wbr>")
	}
	return template.HTML(text) // #nosec G203 -- escaped
}

// pairs returns texts two by two, such as the values and labels of a select.
func pairs(texts ...string) [][]string { return slices.Collect(slices.Chunk(texts, 2)) }

// dict returns a map of names and values, to pass several values to a template.
func dict(list ...any) map[string]any {
	m := map[string]any{}
	for pair := range slices.Chunk(list, 2) {
		m[pair[0].(string)] = pair[1]
	}
	return m
}

// limitWords returns a limit as a sentence without its full stop, such as "1,000 requests per minute, shared by all
// users of acme, in whole minutes UTC". who is the tenant; "" stands for the reader's own.
func limitWords(l *answers.LimitInForce, who string) string {
	if who == "" {
		who = "your organization"
	}
	parts := []string{quantityWords(l)}
	if l.Endpoint != "" {
		parts[0] += " to " + l.Endpoint
	}
	if l.Models != "" {
		parts[0] += " for calls of " + l.Models
	}
	if scope := scopeWords[l.Scope]; scope != "" {
		parts = append(parts, strings.Replace(scope, "WHO", who, 1))
	}
	if way := algorithmWords(l); way != "" {
		parts = append(parts, way)
	}
	if l.Cost > 1 && !l.Settles {
		parts = append(parts, "of which a request spends "+amountWords(l.Cost, l.Unit))
	}
	return strings.Join(parts, ", ")
}

// quantityWords returns how much a limit allows: "1,000 requests per minute".
func quantityWords(l *answers.LimitInForce) string {
	quantity := plural(l.Limit, "request")
	switch {
	case l.Unit != "":
		quantity = amountWords(l.Limit, l.Unit)
	case l.Settles || l.Cost > 1:
		quantity = plural(l.Limit, "token")
	}
	return quantity + " " + perWords(l.Window)
}

// perWords returns what a limit counts over, after how much it allows: "per 10 minutes", "per month (Europe/Berlin)",
// "at once".
func perWords(w answers.Window) string {
	if w.WindowSize != 0 {
		return "per " + windowWords(w.WindowSize)
	}
	return w.Per()
}

// scopeWords say which requests spend from the same bucket. WHO is the tenant.
var scopeWords = map[string]string{
	"tenant":          "shared by all users of WHO",
	"user":            "for each user of WHO",
	"credential":      "for each credential of WHO",
	"ip":              "for each address",
	"endpoint":        "for each endpoint, shared by all tenants",
	"global":          "shared by all tenants",
	"tenant+endpoint": "for each endpoint, shared by all users of WHO",
	"user+endpoint":   "for each user of WHO and each endpoint",
}
