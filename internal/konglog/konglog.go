// Package konglog generates logs as Kong's file-log plugin writes them, for tests and benchmarks.
package konglog

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

// Options describes the traffic of a log.
type Options struct {
	Lines     int
	Tenants   int       // their requests are distributed by Zipf's law: tenant-0 has the most
	From      time.Time // the start of the first request
	PerSecond int       // requests
	Seed      uint64
}

// Write writes a log. Entries are in the order in which requests end, as Kong writes them.
func Write(to io.Writer, o Options) error {
	out := bufio.NewWriterSize(to, 1<<20)
	random := rand.New(rand.NewPCG(o.Seed, 1))
	tenants := rand.NewZipf(random, 1.2, 8, uint64(o.Tenants-1))
	step := time.Second / time.Duration(o.PerSecond)
	for i := range o.Lines {
		took := random.IntN(1500)
		start := o.From.Add(time.Duration(i)*step).UnixMilli() - int64(took)
		tenant := tenants.Uint64()
		status := 200
		if random.IntN(50) == 0 {
			status = 404
		}
		write(out, start, took, int(tenant), random.IntN(100_000), status, random)
	}
	return out.Flush()
}

var tiers = [...]string{"essentials", "gold", "platinum"}

// write writes one entry.
func write(out *bufio.Writer, start int64, took, tenant, record, status int, random *rand.Rand) {
	route, method, path := "records", "GET", fmt.Sprintf("/records/%d?fields=name", record)
	switch {
	case record%10 == 0:
		method, path = "POST", "/records"
	case record%4 == 1:
		route, path = "search", fmt.Sprintf("/search?q=term-%d", record)
	}
	fmt.Fprintf(out, entry, route, route, route, path, status, took-3, took, start, start, took-4, tenant%200,
		start, path, path, 300+record%900, method, random.Uint64(), random.Uint64(), status, 200+record%5000, tenant, tenant,
		tenant, tiers[tenant%len(tiers)], tenant)
}

// entry is what Kong 3.9 writes of a request with a consumer, in one line.
const entry = `{"route":{"name":"%s","preserve_host":false,"service":{"id":"7b6f0409-e5ce-5e62-8d83-de7316914b2f"},` +
	`"regex_priority":0,"id":"cbb5a424-cf36-5067-8efb-33ab2380-%s","created_at":1795306717,"updated_at":1795306717,` +
	`"ws_id":"0dc6f45b-8f8d-40d2-a504-473544ee190b","https_redirect_status_code":426,"path_handling":"v0",` +
	`"protocols":["http","https"],"request_buffering":true,"response_buffering":true,"paths":["\/%s"],"strip_path":false},` +
	`"upstream_uri":"%s","source":"upstream","workspace":"0dc6f45b-8f8d-40d2-a504-473544ee190b","upstream_status":"%d",` +
	`"latencies":{"receive":1,"proxy":%d,"request":%d,"kong":2},"tries":[{"balancer_start":%d,"balancer_start_ns":%d000000,` +
	`"balancer_latency_ns":11264,"ip":"10.0.0.7","balancer_latency":%d,"port":9930}],"client_ip":"192.0.2.%d",` +
	`"started_at":%d,"workspace_name":"default","service":{"retries":5,"name":"echo","port":9930,` +
	`"id":"7b6f0409-e5ce-5e62-8d83-de7316914b2f","created_at":1795306717,"connect_timeout":60000,` +
	`"ws_id":"0dc6f45b-8f8d-40d2-a504-473544ee190b","enabled":true,"host":"echo.internal","updated_at":1795306717,` +
	`"read_timeout":60000,"write_timeout":60000,"protocol":"http"},"request":{"querystring":{},` +
	`"url":"http:\/\/api.example.com%s","uri":"%s","size":%d,"method":"%s","id":"%016x%016x","headers":{` +
	`"user-agent":"client\/2.1","authorization":"REDACTED","accept":"*\/*","host":"api.example.com",` +
	`"x-forwarded-for":"203.0.113.9","x-forwarded-proto":"https"}},"response":{"status":%d,"size":%d,"headers":{` +
	`"content-type":"application\/json; charset=UTF-8","server":"kong\/3.9.3","via":"1.1 kong\/3.9.3",` +
	`"x-kong-proxy-latency":"2","x-kong-upstream-latency":"17","connection":"keep-alive"}},` +
	`"authenticated_entity":{"id":"key-%d"},"consumer":{"id":"c-%d","username":"tenant-%d","tags":["tier:%s"],` +
	`"custom_id":"tenant-%d","created_at":1795306717}}` + "\n"
