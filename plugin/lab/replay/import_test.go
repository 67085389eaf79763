package replay_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/lab/replay"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/fromkong"
)

const reports = "/reports/daily"

// traffic returns requests of a day or more in bursts: consumers with several credentials, requests without one,
// IPv4 and IPv6 addresses, with and without the header.
func traffic(random *rand.Rand, n int) []loggedRequest {
	at := time.Date(2026, 1, 31, 14, 59, 58, 0, time.UTC) // the end of a month is within
	pick := func(values ...string) string { return values[random.IntN(len(values))] }
	var requests []loggedRequest
	for len(requests) < n {
		if pause := random.IntN(100); pause == 0 {
			at = at.Add(time.Duration(random.IntN(5400)) * time.Second)
		} else if pause < 40 {
			at = at.Add(time.Duration(random.IntN(2500)) * time.Millisecond)
		}
		r := loggedRequest{
			at: at, ip: pick("192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"),
			org: pick("", "red", "blue"), path: pick("/", reports, "/reports/weekly", "/search"),
		}
		if r.consumer = pick("", "id-acme", "id-globex"); r.consumer != "" {
			r.credential = r.consumer + pick("-key1", "-key2")
		}
		requests = append(requests, r)
	}
	return requests
}

// entry returns a request as Kong's file-log writes it.
func (r *loggedRequest) entry() string {
	who, org := "", ""
	if r.consumer != "" {
		who = fmt.Sprintf(`,"consumer":{"id":%q,"username":"x"},"authenticated_entity":{"id":%q}`, r.consumer, r.credential)
	}
	if r.org != "" {
		org = fmt.Sprintf(`"x-org":%q`, r.org)
	}
	return fmt.Sprintf(`{"started_at":%d,"client_ip":%q,"request":{"method":"GET","uri":%q,"headers":{%s}},`+
		`"response":{"status":200},"route":{"name":"all"},"service":{"name":"echo"}%s}`+"\n",
		r.at.UnixMilli(), r.ip, r.path+"?q=1", org, who)
}

// replayedImport converts an entry of rate-limiting with this config, replays the requests under the result, and
// returns which were admitted.
func replayedImport(t *testing.T, config string, requests []loggedRequest) []bool {
	t.Helper()
	text := fmt.Sprintf(`{_format_version: "3.0", services: [{name: echo, routes: [{name: all, paths: [/]}],
		plugins: [{name: rate-limiting, config: %s}]}]}`, config)
	result, err := fromkong.Convert([]byte(text), fromkong.Options{})
	if err != nil || result.Converted() < len(result.Entries) {
		t.Fatalf("not converted: %v, %+v", err, result)
	}
	configs := file(t, string(result.Text))
	gateway, err := replay.NewGateway(configs, replay.GatewayOptions{})
	require.NoError(t, err)
	var entries bytes.Buffer
	for i := range requests {
		entries.WriteString(requests[i].entry())
	}
	log, err := replay.NewLog("access.log", &entries, replay.LogOptions{
		Headers: replay.HeadersOf(configs, replay.GatewayOptions{}),
	})
	require.NoError(t, err)
	var admitted []bool
	stream := replay.NewStream([]*replay.Log{log}, replay.StreamOptions{})
	_, err = replay.Run(t.Context(), stream, gateway, func(_ *replay.Request, d *decision.Decision) {
		admitted = append(admitted, !d.Denied())
	})
	if err != nil || len(admitted) != len(requests) {
		t.Fatalf("%d of %d requests were decided: %v", len(admitted), len(requests), err)
	}
	return admitted
}

// modeled returns which requests a model admits.
func modeled(m kongModel, requests []loggedRequest) []bool {
	m.counters = map[string]int64{}
	admitted := make([]bool, len(requests))
	for i := range requests {
		admitted[i] = m.admits(&requests[i])
	}
	return admitted
}

// compared counts how two lists of decisions relate.
type compared struct{ both, neither, onlyKong, onlyHere int }

func compare(kong, here []bool) (c compared) {
	for i := range kong {
		switch {
		case kong[i] && here[i]:
			c.both++
		case kong[i]:
			c.onlyKong++
		case here[i]:
			c.onlyHere++
		default:
			c.neither++
		}
	}
	return c
}

var limitsOfKong = map[string]float64{"second": 2, "minute": 9.5, "hour": 60, "day": 300}

func TestAConvertedConfigDecidesEveryRequestOfALogAsKongDoes(t *testing.T) {
	requests := traffic(rand.New(rand.NewPCG(1, 2)), 1500)
	const limits = "second: 2, minute: 9.5, hour: 60, day: 300"
	for name, test := range map[string]struct {
		config string
		model  kongModel
	}{
		"by consumer":   {limits, kongModel{limits: limitsOfKong, limitBy: "consumer"}},
		"by address":    {limits + ", limit_by: ip", kongModel{limits: limitsOfKong, limitBy: "ip"}},
		"by credential": {limits + ", limit_by: credential", kongModel{limits: limitsOfKong, limitBy: "credential"}},
		"by service":    {limits + ", limit_by: service", kongModel{limits: limitsOfKong, limitBy: "service"}},
		"by header": {
			limits + ", limit_by: header, header_name: X-Org", kongModel{limits: limitsOfKong, limitBy: "header"},
		},
		"by path": {
			limits + ", limit_by: path, path: " + reports, kongModel{limits: limitsOfKong, limitBy: "path", path: reports},
		},
		"in Redis, one window": {
			"minute: 9, policy: redis, redis: {host: redis.internal}",
			kongModel{limits: map[string]float64{"minute": 9}, limitBy: "consumer", synchronous: true},
		},
		"in Redis, synchronized now and then": {
			limits + ", policy: redis, sync_rate: 1, redis: {host: redis.internal}",
			kongModel{limits: limitsOfKong, limitBy: "consumer"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := compare(modeled(test.model, requests), replayedImport(t, "{"+test.config+"}", requests))
			if c.onlyKong+c.onlyHere > 0 || c.both == 0 || c.neither == 0 {
				t.Errorf("decided otherwise: %+v", c)
			}
		})
	}
}

// In Redis Kong also counts the requests that it denies. So it denies all that the plugin denies, and some more;
// without that difference the two are equal.
func TestDeniedRequestsOfKongInRedisSpendTheirOtherWindows(t *testing.T) {
	requests := traffic(rand.New(rand.NewPCG(3, 4)), 2500)
	here := replayedImport(t,
		"{second: 2, minute: 9.5, hour: 60, day: 300, policy: redis, redis: {host: redis.internal}}", requests)
	kong := kongModel{limits: limitsOfKong, limitBy: "consumer", synchronous: true}
	if c := compare(modeled(kong, requests), here); c.onlyKong > 0 || c.onlyHere == 0 {
		t.Errorf("the plugin denies %d that Kong admits, and admits %d that Kong denies", c.onlyKong, c.onlyHere)
	}
	kong.synchronous = false
	if c := compare(modeled(kong, requests), here); c.onlyKong+c.onlyHere > 0 {
		t.Errorf("without what denied requests spend: %+v", c)
	}
}

func TestMonthsAndYearsAreThoseOfTheCalendar(t *testing.T) {
	requests := traffic(rand.New(rand.NewPCG(5, 6)), 2500)
	here := replayedImport(t, "{minute: 9, month: 200, year: 1500}", requests)
	kong := kongModel{limits: map[string]float64{"minute": 9, "month": 200, "year": 1500}, limitBy: "consumer"}
	if c := compare(modeled(kong, requests), here); c.onlyKong+c.onlyHere > 0 || c.both == 0 || c.neither == 0 {
		t.Errorf("decided otherwise: %+v", c)
	}
}
