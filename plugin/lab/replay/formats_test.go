package replay_test

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/lab/replay"
)

// seen is what a log says about a request.
type seen struct {
	at       time.Time
	consumer identity.Consumer
	caller   identity.Caller
	route    replay.Route
	// credential, ip, method, target
	names  [4]string
	status int
	header string // X-Tenant, and ! if it came twice
}

// read returns the requests of a log, and how many lines hold none.
func read(t testing.TB, o replay.LogOptions, lines ...string) ([]seen, int64) {
	t.Helper()
	o.Headers = append(o.Headers, "X-Tenant")
	rules := &identity.Rules{Headers: []string{"X-Tenant"}}
	stream := replay.NewStream([]*replay.Log{logOf(t, o, lines...)}, replay.StreamOptions{})
	var all []seen
	err := stream.Each(context.Background(), func(r *replay.Request) error {
		var facts identity.Request
		if err := r.Read(context.Background(), identity.HeaderFacts|identity.ConsumerFact, rules, &facts); err != nil {
			return err
		}
		s := seen{
			at: time.UnixMicro(int64(r.At)).UTC(), consumer: facts.Consumer,
			names: [4]string{r.Credential, r.IP, r.Method, r.Target}, status: r.Status, header: facts.Headers[0],
		}
		if facts.Repeated != "" {
			s.header += "!"
		}
		if r.Caller != nil {
			s.caller = *r.Caller
		}
		if r.Route != nil {
			s.route = *r.Route
		}
		all = append(all, s)
		return nil
	})
	require.NoError(t, err)
	return all, stream.Counts().Unparsed
}

func TestEntriesOfKong(t *testing.T) {
	const entry = `{"started_at":1795306721391,"client_ip":"192.0.2.7","request":{"method":"POST","uri":"/a%20b?x=\"y\u00e9",` +
		`"headers":{"host":"api","x-tenant":"acme","authorization":"REDACTED"}},"response":{"status":429,"headers":{}},` +
		`"route":{"id":"r-1","name":"records","protocols":["grpc"],"tags":{}},"service":{"id":"s-1","name":"up"},` +
		`"consumer":{"id":"c-1","username":"ann","custom_id":"acme","tags":["tier:gold","x"]},` +
		`"authenticated_entity":{"id":"k-1","consumer_id":"c-1"},"tries":[{"ip":"x"}],"unknown":[[{}]]}`
	want := seen{
		at:       time.UnixMilli(1795306721391).UTC(),
		consumer: identity.Consumer{ID: "c-1", Username: "ann", CustomID: "acme", Tags: []string{"tier:gold", "x"}},
		route:    replay.Route{Name: "records", Service: "up", GRPC: true},
		names:    [4]string{"k-1", "192.0.2.7", "POST", "/a%20b?x=\"y\u00e9"}, status: 429, header: "acme",
	}
	all, _ := read(t, replay.LogOptions{}, entry)
	if len(all) != 1 || !reflect.DeepEqual(all[0], want) {
		t.Errorf("one entry: %+v\nwant %+v", all, want)
	}
	if all, unparsed := read(t, replay.LogOptions{}, " [ "+entry+" , "+entry+" ] ", "[]"); len(all) != 2 || unparsed != 0 {
		t.Errorf("a batch of http-log: %+v, %d lines unparsed", all, unparsed)
	}
	for name, change := range map[string][2]string{
		"two lines of a header": {`"x-tenant":"acme"`, `"x-tenant":["acme","evil"]`},
		"a list in a header":    {`"x-tenant":"acme"`, `"x-tenant":"acme, evil"`},
	} {
		all, _ := read(t, replay.LogOptions{}, strings.Replace(entry, change[0], change[1], 1))
		if len(all) != 1 || all[0].header != "!" {
			t.Errorf("%s: %+v", name, all)
		}
	}
	bare, _ := read(t, replay.LogOptions{},
		`{"started_at":1.795306721391e12,"request":{"method":"GET"},"consumer":null,"route":{"id":"r-1"},"response":null}`)
	want = seen{at: time.UnixMilli(1795306721391).UTC(), route: replay.Route{Name: "r-1"}, names: [4]string{2: "GET"}}
	if len(bare) != 1 || !reflect.DeepEqual(bare[0], want) {
		t.Errorf("a bare entry: %+v, want %+v", bare, want)
	}
}

func TestEntriesOfARealKong(t *testing.T) {
	text, err := os.ReadFile("testdata/kong-3.9.3.jsonl")
	require.NoError(t, err)
	all, unparsed := read(t, replay.LogOptions{}, strings.Split(strings.TrimSpace(string(text)), "\n")...)
	if unparsed != 0 || len(all) < 5 {
		t.Fatalf("%d requests, %d lines unparsed", len(all), unparsed)
	}
	for _, s := range all {
		if s.names[1] != "127.0.0.1" || s.names[2] == "" || !strings.HasPrefix(s.names[3], "/") || s.status == 0 {
			t.Errorf("request %+v", s)
		}
	}
}

func TestLinesOfNginx(t *testing.T) {
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		format, line string
		want         seen
	}{
		"combined": {
			"", `192.0.2.7 - ann [20/Nov/2026:13:00:00 +0100] "GET /a\x22b HTTP/1.1" 200 12 "-" "curl/8 \x22x\x22"`,
			seen{
				at: at, consumer: identity.Consumer{Username: "ann"}, names: [4]string{"", "192.0.2.7", "GET", `/a"b`},
				status: 200,
			},
		},
		"Kong's headers, and the duration": {
			`$msec|$request_time|${request_method}|$request_uri|$http_x_consumer_custom_id|$http_x_credential_identifier|$http_x_tenant`,
			`1795176001.500|1.500|POST|/x y|acme|k-1|globex`,
			seen{
				at: at, consumer: identity.Consumer{CustomID: "acme"}, names: [4]string{"k-1", "", "POST", "/x y"},
				header: "globex",
			},
		},
		"ISO 8601 without names": {
			`{$time_iso8601} $http_x_tenant "$request"`, `{2026-11-20T06:00:00-06:00} - "GET / HTTP/2.0"`,
			seen{at: at, names: [4]string{2: "GET", 3: "/"}},
		},
	} {
		all, unparsed := read(t, replay.LogOptions{Format: replay.FormatNginx, NginxFormat: c.format}, c.line)
		if len(all) != 1 || !reflect.DeepEqual(all[0], c.want) {
			t.Errorf("%s: %+v, %d unparsed\nwant %+v", name, all, unparsed, c.want)
		}
	}
	_, unparsed := read(t, replay.LogOptions{Format: replay.FormatNginx}, "", "nonsense",
		`192.0.2.7 - - [20/Nov/2026:13:00:00] "GET / HTTP/1.1" 200 1 "-" "-"`,
		`192.0.2.7 - - [20/Nov/2026:13:00:00 +0100] "-" 400 0 "-" "-"`)
	if unparsed != 3 {
		t.Errorf("%d lines unparsed, want 3", unparsed)
	}
	for _, format := range []string{"$request", "$msec", "$msec$request", "$msec $"} {
		o := replay.LogOptions{Format: replay.FormatNginx, NginxFormat: format}
		if _, err := replay.NewLog("access.log", strings.NewReader("x\n"), o); err == nil {
			t.Errorf("log_format %q is accepted", format)
		}
	}
}

func TestNamesOfNginxMayHoldWhatSeparatesThem(t *testing.T) {
	const json = `$remote_addr - $remote_user [$time_local] "$request" $status "$http_x_tenant" "$http_user_agent"`
	for _, c := range []struct{ format, line, user, target string }{
		{"", `192.0.2.7 - ann [x] [20/Nov/2026:12:00:00 +0000] "GET /a HTTP/1.1" 200 1 "-" "-"`, "ann [x]", "/a"},
		{"", `192.0.2.7 - ann - b [20/Nov/2026:12:00:00 +0000] "GET /a HTTP/1.1" 200 1 "-" "-"`, "ann - b", "/a"},
		{
			json, `192.0.2.7 - a\"b\\ [20/Nov/2026:12:00:00 +0000] "GET /a?q=\" 1\u0009 HTTP/1.1" 200 "acme" "x"`,
			`a"b\`, "/a?q=\" 1\t",
		},
	} {
		all, unparsed := read(t, replay.LogOptions{Format: replay.FormatNginx, NginxFormat: c.format}, c.line)
		if unparsed != 0 || len(all) != 1 || all[0].consumer.Username != c.user || all[0].names[3] != c.target ||
			all[0].status != 200 {
			t.Errorf("%s: %+v", c.line, all)
		}
	}
	hostile := "192.0.2.7 - " + strings.Repeat(" [", 10_000) + ` [20/Nov/2026:12:00:00 +0000] "GET /a HTTP/1.1" 200 1 "-" "-"`
	if _, unparsed := read(t, replay.LogOptions{Format: replay.FormatNginx}, hostile); unparsed != 0 {
		t.Error("a line with 10,000 places to end a name at is not read")
	}
}

func TestCSV(t *testing.T) {
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	all, unparsed := read(t, replay.LogOptions{},
		"\ufeffstarted_at,path,method,status,consumer.custom_id,consumer.tag.tier,header.x-tenant,route,service,ip",
		`2026-11-20T13:00:00+01:00,"/a,""b""",GET,200,acme,gold,globex,records,up,192.0.2.7`,
		`1795176000,/b,GET,,,,,,,`,
		`1795176000000,/b,GET,,,,,,,`,
		`1795176000000000,/b,GET,,,,,,,`,
		`2026-11-20 12:00:00Z,/b,GET,,,,,,,`,
		`2026-11-20T13:00:00,/no-zone,GET,,,,,,,`,
		`7,/early,GET,,,,,,,`, `1795176000,too,few`, `1795176000,"/open,GET,,,,,,,`, `1795176000,"/x"y,GET,,,,,,,`,
		`1795176000,/b,GET,ok,,,,,,`)
	want := seen{
		at: at, consumer: identity.Consumer{CustomID: "acme", Tags: []string{"tier:gold"}},
		route: replay.Route{Name: "records", Service: "up"},
		names: [4]string{"", "192.0.2.7", "GET", `/a,"b"`}, status: 200, header: "globex",
	}
	if len(all) != 5 || unparsed != 6 || !reflect.DeepEqual(all[0], want) {
		t.Fatalf("%d unparsed, %+v\nwant %+v", unparsed, all, want)
	}
	for _, s := range all[1:] {
		if !s.at.Equal(at) || s.names[3] != "/b" {
			t.Errorf("request %+v", s)
		}
	}
	stated, _ := read(t, replay.LogOptions{}, "tenant,user,tier,cost,started_at", "acme,ann,gold,3,1795176000")
	if len(stated) != 1 || stated[0].caller != (identity.Caller{Tenant: "acme", User: "ann", Tier: "gold", Cost: 3}) {
		t.Errorf("stated %+v", stated)
	}
	for _, head := range []string{
		"started_at,started_at", "started_at,org", "tenant,path", "started_at,tenant,consumer.id", `"started_at`,
	} {
		o := replay.LogOptions{Format: replay.FormatCSV}
		if _, err := replay.NewLog("access.csv", strings.NewReader(head+"\n"), o); err == nil {
			t.Errorf("columns %q are accepted", head)
		}
	}
}

// FuzzLogs reads any text as each format: it must not panic, and each request must have a time within bounds.
func FuzzLogs(f *testing.F) {
	formats := []string{replay.FormatAuto, replay.FormatKong, replay.FormatNginx, replay.FormatCSV}
	for _, text := range []string{
		entry(0, "acme"), "[" + entry(0, "") + ",1]", `{"started_at":1e400,"request":{"method":"\ud800"}}`, `{"a":[`,
		`192.0.2.7 - - [20/Nov/2026:13:00:00 +0100] "GET /a\x2 HTTP/1.1" 200 1 "-" "-"`, "started_at,path\n1795176000,\"\"\"\"",
		"started_at,tenant,cost\n1795176000,\x00,-1", "\x1f\x8b\x08\x00",
	} {
		for i := range formats {
			f.Add(text, uint8(i))
		}
	}
	if files, err := filepath.Glob("testdata/*.jsonl"); err == nil {
		for _, file := range files {
			if text, err := os.ReadFile(file); err == nil {
				f.Add(string(text), uint8(0))
			}
		}
	}
	f.Fuzz(func(t *testing.T, text string, format uint8) {
		o := replay.LogOptions{Format: formats[int(format)%len(formats)], Headers: []string{"Host", "X-Tenant"}}
		log, err := replay.NewLog("fuzz", strings.NewReader(text), o)
		if err != nil {
			return
		}
		stream, last := replay.NewStream([]*replay.Log{log}, replay.StreamOptions{Waiting: 4}), limit.Micros(0)
		rules := &identity.Rules{Headers: []string{"Host", "X-Tenant"}}
		err = stream.Each(context.Background(), func(r *replay.Request) error {
			if r.At < last || r.At > 9214646400e6 || r.Line < 1 {
				t.Errorf("request %+v after %d", r, last)
			}
			last = r.At
			return r.Read(context.Background(), ^identity.Facts(0), rules, new(identity.Request))
		})
		if err != nil {
			t.Error(err)
		}
		if c := stream.Counts(); c.Unparsed > c.Lines || c.Requests+c.Late < 0 {
			t.Errorf("counts %+v", c)
		}
	})
}
