package gateway

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway/internal/uri"
)

// serialize answers kong.log.serialize: the JSON of the entry that Kong's log plugins write.
func serialize(x *exchange, _ []byte) ([]byte, error) {
	entry := x.logEntry()
	for _, added := range x.serialized {
		if err := putPath(entry, added.key, added.value); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(entry)
	if err != nil {
		return nil, fmt.Errorf("encode log entry: %w", err)
	}
	return encodeString(string(text)), nil
}

// putPath sets a value in a tree of tables. Dots in the key separate the names of nested ones.
func putPath(table map[string]any, key string, value any) error {
	names := strings.Split(key, ".")
	for _, name := range names[:len(names)-1] {
		if table[name] == nil {
			table[name] = map[string]any{}
		}
		nested, ok := table[name].(map[string]any)
		if !ok {
			return fmt.Errorf("key %q: %s is no table", key, name)
		}
		table = nested
	}
	put(&table, names[len(names)-1], value)
	return nil
}

// logEntry returns the entry without what plugins have added to it.
func (x *exchange) logEntry() map[string]any {
	s := x.sent
	entry := map[string]any{
		"client_ip": x.forwardedIP, "started_at": x.began.UnixMilli(), "source": "kong",
		"upstream_uri": "", "upstream_status": s.upstreamStatus,
		"workspace": workspaceID, "workspace_name": "default",
		"latencies": map[string]any{"kong": s.kong, "proxy": s.proxy, "receive": s.receive, "request": s.total},
		"request": map[string]any{
			"id": x.requestID, "method": x.method, "size": x.size, "uri": x.requestURI,
			"url":     "http://" + x.hostName() + ":" + x.node.port + x.requestURI,
			"headers": x.headerTable(maxTableHeaders), "querystring": x.queryTable(),
		},
		"response": map[string]any{"status": s.status, "size": s.size, "headers": s.header},
	}
	if s.source == sourceService {
		entry["source"] = "upstream"
	}
	if x.credentialID != "" {
		entry["authenticated_entity"] = map[string]any{"id": x.credentialID}
	}
	if x.consumer != nil {
		entry["consumer"] = consumerTable(x.consumer)
	}
	if x.service != nil {
		entry["service"] = serviceTable(x.service)
	}
	if x.route != nil {
		entry["route"], entry["tries"] = routeTable(x.route), x.tries()
	}
	if x.match != nil {
		entry["upstream_uri"] = x.upstreamURI()
	}
	return entry
}

// upstreamURI returns the path and the query that go to the upstream.
func (x *exchange) upstreamURI() string {
	path, query := uri.Escape(x.match.UpstreamPath), uri.Query(x.requestURI)
	if query == "" && !strings.HasSuffix(x.requestURI, "?") {
		return path
	}
	return path + "?" + query
}

// queryTable returns the query's arguments as OpenResty does: true for one without "=", a list for several of a name.
func (x *exchange) queryTable() map[string]any {
	table := map[string]any{}
	for _, pair := range strings.Split(uri.Query(x.requestURI), "&") {
		if pair == "" {
			continue
		}
		name, text, given := strings.Cut(pair, "=")
		value := any(unescape(text))
		if !given {
			value = true
		}
		switch earlier := table[unescape(name)].(type) {
		case nil:
			table[unescape(name)] = value
		case []any:
			table[unescape(name)] = append(earlier, value)
		default:
			table[unescape(name)] = []any{earlier, value}
		}
	}
	return table
}

// unescape decodes a part of a query, which stays as it is where that fails.
func unescape(text string) string {
	if decoded, err := url.QueryUnescape(text); err == nil {
		return decoded
	}
	return text
}

// tries returns the calls of the upstream. All but the last have failed.
func (x *exchange) tries() []any {
	tries := []any{}
	for n := range x.sent.tries {
		try := map[string]any{
			"ip": x.service.Host, "port": x.service.Port,
			"balancer_start": x.sent.proxied.UnixMilli(), "balancer_start_ns": x.sent.proxied.UnixNano(),
			"balancer_latency": 0, "balancer_latency_ns": 0,
		}
		if n < x.sent.tries-1 {
			maps.Copy(try, map[string]any{"state": "failed", "code": x.sent.status})
		}
		tries = append(tries, try)
	}
	return tries
}

// routeTable returns the route as the Lua table that Kong keeps of it, with the defaults of fields that the decK reader
// does not take.
func routeTable(r *Route) map[string]any {
	table := map[string]any{
		"id": r.ID, "created_at": r.CreatedAt, "updated_at": r.UpdatedAt, "ws_id": workspaceID,
		"https_redirect_status_code": httpsRedirectStatus, "path_handling": "v0", "preserve_host": false,
		"protocols": r.Protocols, "regex_priority": 0, "request_buffering": true, "response_buffering": true,
		"strip_path": r.StripPath,
	}
	if r.Service != nil {
		table["service"] = map[string]any{"id": r.Service.ID}
	}
	addGiven(table, map[string]string{"name": r.Name}, map[string][]string{
		"hosts": r.Hosts, "methods": r.Methods, "paths": r.Paths, "tags": r.Tags,
	})
	return table
}

func serviceTable(s *Service) map[string]any {
	table := map[string]any{
		"id": s.ID, "created_at": s.CreatedAt, "updated_at": s.UpdatedAt, "ws_id": workspaceID, "enabled": true,
		"protocol": s.Protocol, "host": s.Host, "port": s.Port, "retries": s.Retries,
		"connect_timeout": serviceTimeout, "read_timeout": s.ReadTimeout, "write_timeout": serviceTimeout,
	}
	addGiven(table, map[string]string{"name": s.Name, "path": s.Path}, map[string][]string{"tags": s.Tags})
	return table
}

// addGiven adds the texts and lists that are not empty.
func addGiven(table map[string]any, texts map[string]string, lists map[string][]string) {
	for name, text := range texts {
		if text != "" {
			table[name] = text
		}
	}
	for name, list := range lists {
		if len(list) > 0 {
			table[name] = list
		}
	}
}

// requestSize returns the size of a request's line and headers in HTTP/1.1.
func (x *exchange) requestSize() int64 {
	size := len(x.method) + len(x.target) + len("  HTTP/1.1\r\n\r\n")
	if x.host != "" {
		size += len("Host: \r\n") + len(x.host)
	}
	for name, values := range x.header {
		for _, value := range values {
			size += len(name) + len(": \r\n") + len(value)
		}
	}
	return int64(size)
}
