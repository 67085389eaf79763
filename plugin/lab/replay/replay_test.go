package replay_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/lab/replay"
)

func TestRequestsAreDecidedAtTheirTimes(t *testing.T) {
	log := logOf(t, replay.LogOptions{},
		entry(0, "acme"), entry(10, "acme"), entry(20, "acme"), entry(30, "globex"), entry(59, "acme"), entry(60, "acme"))
	report, outcomes := replayed(t, twoAMinute, replay.GatewayOptions{}, log)
	if outcomes != "..D.D." {
		t.Errorf("outcomes %s, want ..D.D.", outcomes)
	}
	if report.Requests != 6 || report.Denied != 2 || report.Tenants != 2 || report.Hurt != 1 {
		t.Errorf("report %+v", report)
	}
	row := report.Rows[0]
	if row.Tenant != "acme" || row.Policy != "minute" || row.Requests != 5 || row.Denied != 2 ||
		!row.FirstDenied.Equal(noon.Add(20*time.Second)) || row.FirstLine != "access.log:3" {
		t.Errorf("row %+v", row)
	}
	if w := row.Worst; !w.From.Equal(noon) || w.Seconds != 60 || w.Requests != 4 || w.Denied != 2 || w.Percent != 200 {
		t.Errorf("worst window %+v", w)
	}
}

func TestPeriodsAreThoseOfTheCalendarAndRequestsAtOnceAreAdmitted(t *testing.T) {
	const config = `plugins: [{name: tenant-rate-limiting, config: {on_missing_tenant: skip, tiers: [{name: a, limits: [
		{name: daily, scope: tenant, limit: 1, algorithm: fixed_window, period: day, time_zone: Asia/Kathmandu},
		{name: exports, scope: tenant, limit: 1, algorithm: concurrency, max_duration: 86400}]}]}}]`
	const midnight = 6*3600 + 15*60 // of Kathmandu, in seconds after noon UTC
	log := logOf(t, replay.LogOptions{}, entry(0, "acme"), entry(midnight-1, "acme"), entry(midnight, "acme"),
		entry(midnight+1, "acme"))
	report, outcomes := replayed(t, config, replay.GatewayOptions{}, log)
	if outcomes != ".D.D" {
		t.Errorf("outcomes %s, want .D.D", outcomes)
	}
	begin := noon.Add((midnight - 86400) * time.Second)
	if w := report.Rows[0].Worst; !w.From.Equal(begin) || w.Seconds != 86400 || w.Denied != 1 {
		t.Errorf("worst period %+v", w)
	}
}

func TestRequestsAreSortedWithinTenMinutes(t *testing.T) {
	log := logOf(t, replay.LogOptions{},
		entry(30, "acme"), entry(0, "acme"), entry(10, "globex"), entry(620, "acme"), entry(25, "acme"), entry(700, "acme"),
		entry(29, "acme"))
	report, outcomes := replayed(t, twoAMinute, replay.GatewayOptions{}, log)
	if outcomes != "...D.." { // 0, 10 (globex), 25, 30, 620, 700; 29 is late
		t.Errorf("outcomes %s", outcomes)
	}
	if report.Counts.Late != 1 || report.Rows[0].FirstLine != "access.log:1" {
		t.Errorf("counts %+v, row %+v", report.Counts, report.Rows[0])
	}
}

func TestLogsOfSeveralNodesAreMerged(t *testing.T) {
	first := logOf(t, replay.LogOptions{}, entry(0, "acme"), entry(3000, "acme"), entry(3002, "acme"))
	second := logOf(t, replay.LogOptions{}, entry(1, "acme"), entry(2, "acme"), entry(3001, "acme"))
	report, outcomes := replayed(t, twoAMinute, replay.GatewayOptions{}, first, second)
	if outcomes != "..D..D" || report.Counts.Late != 0 {
		t.Errorf("outcomes %s, late %d", outcomes, report.Counts.Late)
	}
}

func TestTimesFarAheadDoNotMakeOthersLate(t *testing.T) {
	ahead := func(seconds float64) string { return entry(seconds+7200, "acme") }
	many := []string{entry(0, "acme")}
	for i := range 400 {
		many = append(many, ahead(float64(i)))
	}
	for i := range 600 {
		many = append(many, entry(float64(1+i), "globex"))
	}
	for name, log := range map[string]struct {
		lines []string
		late  int64
	}{
		"first":        {[]string{ahead(0), entry(0, "acme"), entry(1, "acme"), entry(2, "acme")}, 1},
		"middle":       {[]string{entry(0, "acme"), ahead(0), entry(1, "acme"), entry(2, "acme")}, 1},
		"two first":    {[]string{ahead(0), ahead(1), entry(0, "acme"), entry(1, "acme"), entry(2, "acme")}, 2},
		"two middle":   {[]string{entry(0, "acme"), ahead(0), ahead(1), entry(1, "acme"), entry(2, "acme")}, 2},
		"interleaved":  {[]string{entry(0, "acme"), ahead(0), entry(1, "acme"), ahead(5), entry(2, "acme")}, 2},
		"four hundred": {many, 400},
	} {
		report, _ := replayed(t, twoAMinute, replay.GatewayOptions{}, logOf(t, replay.LogOptions{}, log.lines...))
		if report.Counts.Late != log.late || !report.To.Before(noon.Add(time.Hour)) {
			t.Errorf("%s: %d left out, the last at %v", name, report.Counts.Late, report.To)
		}
	}
}

func TestAHoleIsNoTimeFarAhead(t *testing.T) {
	var lines []string
	for _, hours := range []float64{0, 5, 10} {
		lines = append(lines, entry(hours*3600, "acme"))
		lines = append(lines, entry(hours*3600-1800, "globex")) // it took long: its line is written at its end
		lines = append(lines, entry(hours*3600+1, "acme"), entry(hours*3600+2, "acme"))
	}
	lines = append(lines, entry(24*3600, "acme"))
	report, _ := replayed(t, twoAMinute, replay.GatewayOptions{}, logOf(t, replay.LogOptions{}, lines...))
	if report.Counts.Late != 0 || report.Requests != 13 {
		t.Errorf("%d requests, %d left out", report.Requests, report.Counts.Late)
	}
}

func TestRequestsOfTheFutureAreShown(t *testing.T) {
	until := limit.Micros(noon.Add(time.Hour).UnixMicro())
	log := logOf(t, replay.LogOptions{Until: until}, entry(0, "acme"), entry(1, "acme"), entry(3601, "acme"))
	report, outcomes := replayed(t, twoAMinute, replay.GatewayOptions{}, log)
	if outcomes != ".." || report.Counts.Unparsed != 1 ||
		!strings.Contains(report.Counts.Problems[0].Problem, "started_at: 2026-11-20T13:00:01Z is in the future") {
		t.Errorf("outcomes %s, counts %+v", outcomes, report.Counts)
	}
}

func TestLinesWithoutARequestAreCountedAndShown(t *testing.T) {
	lines := []string{
		entry(0, "acme"), "not JSON", `{"started_at":"soon"}`, `[1]`, `"text"`, "", `{"started_at":1795306721}`,
		`{"started_at":1795306721391}`, `{"request":{"method":"GET"}}`, entry(1, "acme"), strings.Repeat("x", 10<<20),
		entry(2, "acme"),
	}
	report, outcomes := replayed(t, twoAMinute, replay.GatewayOptions{}, logOf(t, replay.LogOptions{}, lines...))
	if outcomes != "..D" || report.Counts.Unparsed != 8 || report.Counts.Lines != 12 {
		t.Errorf("outcomes %s, counts %+v", outcomes, report.Counts)
	}
	var shown []int64
	for _, p := range report.Counts.Problems {
		shown = append(shown, p.Line)
	}
	if !slices.Equal(shown, []int64{2, 3, 4, 5, 7}) {
		t.Errorf("shown lines %v", report.Counts.Problems)
	}
}

func TestOverlongLinesBeforeTheFirstRequestAreCountedAndShown(t *testing.T) {
	long := strings.Repeat("x", 2<<20)
	for _, lines := range [][]string{{long}, {long, long, entry(0, "acme")}, {long, `tenant,started_at`}} {
		report, _ := replayed(t, twoAMinute, replay.GatewayOptions{}, logOf(t, replay.LogOptions{}, lines...))
		c := report.Counts
		if c.Unparsed == 0 || c.Problems[0].Line != 1 || !strings.Contains(c.Problems[0].Problem, "is longer than") {
			t.Errorf("%d lines: %+v, want the first one shown", len(lines), c)
		}
	}
}

func TestATruncatedLogNamesTheLineToResumeAt(t *testing.T) {
	var lines []string
	for i := range 2000 {
		lines = append(lines, entry(float64(i), "acme"))
	}
	whole := strings.Join(lines, "\n") + "\n"
	text := zipped(t, whole)
	open := func(text []byte, from int64) *replay.Log {
		l, err := replay.NewLog("access.log.gz", bytes.NewReader(text), replay.LogOptions{FirstLine: from})
		require.NoError(t, err)
		return l
	}
	broken, before := replayed(t, twoAMinute, replay.GatewayOptions{}, open(text[:len(text)/2], 0))
	if len(broken.Counts.Broken) != 1 || broken.Counts.Unparsed != 0 {
		t.Fatalf("counts %+v", broken.Counts)
	}
	line := broken.Counts.Broken[0].Line
	if int(line) != len(before)+1 {
		t.Errorf("resume at line %d after %d requests", line, len(before))
	}
	_, after := replayed(t, twoAMinute, replay.GatewayOptions{}, open(text, line))
	if len(before)+len(after) != len(lines) {
		t.Errorf("%d requests before line %d, %d from it on, of %d", len(before), line, len(after), len(lines))
	}
}

func TestALogThatIsCutInItsGzipHeaderBreaksOffBeforeItsFirstLine(t *testing.T) {
	text := zipped(t, entry(0, "acme")+"\n")
	for length := 1; length <= 12; length++ {
		log, err := replay.NewLog("access.log.gz", bytes.NewReader(text[:length]), replay.LogOptions{})
		if err != nil {
			t.Fatalf("%d bytes: %v", length, err)
		}
		report, _ := replayed(t, twoAMinute, replay.GatewayOptions{}, log)
		if b := report.Counts.Broken; len(b) != 1 || b[0].Line != 1 || report.Counts.Unparsed != 0 {
			t.Errorf("%d bytes: counts %+v", length, report.Counts)
		}
	}
}

func TestTheRouteSelectsTheConfig(t *testing.T) {
	const config = `
services:
- name: up
  routes:
  - name: records
  - name: search
    plugins:
    - name: tenant-rate-limiting
      config: {tiers: [{name: a, limits: [{name: one, scope: tenant, limit: 1, window_size: 3600}]}]}
plugins:
- name: tenant-rate-limiting
  service: other
  config: {tiers: [{name: a, limits: [{name: two, scope: tenant, limit: 2, window_size: 3600}]}]}
`
	on := func(route, service string) string {
		return strings.Replace(entry(0, "acme"), `"route":{"name":"records"}`,
			`"route":{"id":"`+route+`","name":"`+route+`"},"service":{"name":"`+service+`"}`, 1)
	}
	log := logOf(t, replay.LogOptions{},
		on("search", "up"), on("search", "up"), on("records", "up"), on("records", "up"), on("x", "other"), on("y", "other"),
		on("z", "other"))
	report, outcomes := replayed(t, config, replay.GatewayOptions{}, log)
	if outcomes != ".D..D" || report.Uncovered != 2 {
		t.Errorf("outcomes %s, %d uncovered", outcomes, report.Uncovered)
	}
}

func TestSourcesThatNoLogCarriesAreAnError(t *testing.T) {
	config := strings.Replace(twoAMinute, "on_missing_tenant", "tenant_from: [jwt.org]\n    on_missing_tenant", 1)
	_, err := replay.NewGateway(file(t, config), replay.GatewayOptions{})
	const want = "tenant_from: jwt.org: logs carry no tokens: say what to use with --tenant-from"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v", err)
	}
	o := replay.GatewayOptions{TenantFrom: []string{"consumer.custom_id"}}
	log := logOf(t, replay.LogOptions{}, entry(0, "acme"), entry(1, "acme"), entry(2, "acme"))
	if _, outcomes := replayed(t, config, o, log); outcomes != "..D" {
		t.Errorf("outcomes %s", outcomes)
	}
}

func TestDenialsAreComparedWithTheLog(t *testing.T) {
	denied := func(line string) string { return strings.Replace(line, `"status":200`, `"status":429`, 1) }
	log := logOf(t, replay.LogOptions{},
		denied(entry(0, "acme")), entry(1, "acme"), denied(entry(2, "acme")), entry(3, "acme"))
	report, _ := replayed(t, twoAMinute, replay.GatewayOptions{}, log)
	if want := (replay.Logged{Answered: 4, Denied: 2, Both: 1, OnlyLog: 1, OnlyReplay: 1}); report.Log != want {
		t.Errorf("log %+v, want %+v", report.Log, want)
	}
}

func TestTheRouteOfALogWithoutRoutesIsFoundByPath(t *testing.T) {
	const config = `
services:
- name: up
  routes:
  - {name: all, paths: [/]}
  - name: records
    paths: [/records]
    methods: [GET]
    plugins:
    - name: tenant-rate-limiting
      config: {on_missing_tenant: skip, global: {limits: [{name: one, scope: endpoint, limit: 1, window_size: 3600}]}}
  - name: search
    paths: ["~/(search|find)$"]
    plugins:
    - name: tenant-rate-limiting
      config: {on_missing_tenant: skip, global: {limits: [{name: two, scope: endpoint, limit: 2, window_size: 3600}]}}
`
	var lines []string
	for i, request := range []string{
		"GET /records/7", "GET //records/8", "POST /records", "GET /search", "GET /find?q=x", "GET /search", "GET /other",
	} {
		lines = append(lines, fmt.Sprintf(`192.0.2.7 - - [20/Nov/2026:12:00:%02d +0000] "%s HTTP/1.1" 200 1 "-" "-"`, i, request))
	}
	report, outcomes := replayed(t, config, replay.GatewayOptions{}, logOf(t, replay.LogOptions{}, lines...))
	if outcomes != ".D..D" || report.Uncovered != 2 {
		t.Errorf("outcomes %s, %d uncovered", outcomes, report.Uncovered)
	}
}

func TestTheHeadersThatALogHasChooseTheRoute(t *testing.T) {
	const config = `
services:
- name: up
  routes:
  - {name: stable, paths: [/]}
  - name: beta
    headers: {x-beta: ["1", "yes"]}
    paths: [/]
    plugins:
    - name: tenant-rate-limiting
      config: {on_missing_tenant: skip, global: {limits: [{name: one, scope: endpoint, limit: 1, window_size: 3600}]}}
`
	headers := replay.HeadersOf(file(t, config), replay.GatewayOptions{})
	nginx := func(value string) string { return "1795176000.000 GET / " + value }
	csv := func(value string) string { return "2026-11-20T12:00:00Z,GET,/," + value }
	for name, c := range map[string]struct {
		format    string
		lines     []string
		outcomes  string
		uncovered int
		unmatched int
	}{
		"nginx": {
			"$msec $request_method $request_uri $http_x_beta",
			[]string{nginx("1"), nginx("YES"), nginx("2"), nginx("-")},
			".D", 2, 0,
		},
		"nginx without the header": {
			"$msec $request_method $request_uri $http_referer", []string{nginx("1"), nginx("-")}, "", 0, 2,
		},
		"CSV": {
			"", []string{"started_at,method,path,header.X-BETA", csv("yes"), csv("1"), csv(""), csv("0")}, ".D", 2, 0,
		},
		"CSV without the header": {"", []string{"started_at,method,path,header.Via", csv("1")}, "", 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			log := logOf(t, replay.LogOptions{NginxFormat: c.format, Headers: headers}, c.lines...)
			report, outcomes := replayed(t, config, replay.GatewayOptions{}, log)
			if outcomes != c.outcomes || report.Uncovered != int64(c.uncovered) || report.Unmatched != int64(c.unmatched) {
				t.Errorf("outcomes %s, %d uncovered, %d unmatched; want %s, %d and %d", outcomes, report.Uncovered,
					report.Unmatched, c.outcomes, c.uncovered, c.unmatched)
			}
		})
	}
}

func TestARequestThatSeveralRoutesMayTakeIsUnmatched(t *testing.T) {
	const config = `
services:
- name: up
  routes:
  - {name: www, hosts: [www.example.com], paths: [/]}
  - name: api
    hosts: [api.example.com]
    paths: [/]
    plugins:
    - name: tenant-rate-limiting
      config: {on_missing_tenant: skip, global: {limits: [{name: one, scope: endpoint, limit: 1, window_size: 3600}]}}
`
	line := func(host string) string {
		return fmt.Sprintf(`{"started_at":%d,"request":{"method":"GET","uri":"/","headers":{%s}}}`, noon.UnixMilli(), host)
	}
	log := logOf(t, replay.LogOptions{Headers: replay.HeadersOf(file(t, config), replay.GatewayOptions{})},
		line(`"host":"API.example.com:8000"`), line(`"host":"api.example.com"`), line(`"host":"www.example.com"`), line(""))
	report, outcomes := replayed(t, config, replay.GatewayOptions{}, log)
	if outcomes != ".D" || report.Uncovered != 1 || report.Unmatched != 1 {
		t.Errorf("outcomes %s, %d uncovered, %d unmatched", outcomes, report.Uncovered, report.Unmatched)
	}
	const either = "www (by hosts) or api (by hosts)"
	list := report.UnmatchedRoutes
	if len(list) != 1 || list[0].Requests != 1 || !strings.HasSuffix(list[0].First, ":4") || list[0].Text() != either {
		t.Errorf("the requests that several routes may take are %+v", list)
	}
}
