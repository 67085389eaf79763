package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
)

// What the response came from, as kong.response.get_source answers.
const (
	sourceService = "service" // the upstream, and a client that has gone before
	sourceExit    = "exit"    // a plugin, or Kong before it called the upstream
	sourceError   = "error"   // Kong, for an upstream that failed
)

// sentResponse is what Kong keeps of a response for the log phase.
type sentResponse struct {
	status         int
	source         string
	header         map[string]any // OpenResty's table
	size           int64          // bytes, headers included
	kong, proxy    int64          // ms: until the upstream was called or Kong answered; until its headers, or -1
	receive, total int64          // ms: for the upstream's body; for all
}

// startLogs sends the log events of a request. The client has its response, and does not wait for them. A response over
// HTTP/2 without a body leaves with the end of its stream, because gRPC clients read no status in headers before it.
func (g *Gateway) startLogs(a *answerWriter, handlers []*externalPlugin, worker int) {
	if a.request.ProtoMajor == 1 || a.body > 0 {
		if err := http.NewResponseController(a.ResponseWriter).Flush(); err != nil {
			g.options.Log.Debug("flush response", "error", err, "request_id", a.x.requestID)
		}
	}
	a.x.sent = a.sent(time.Now())
	if a.upload != nil {
		a.x.size += a.upload.read.Load()
	}
	for _, handler := range handlers {
		g.logging.Go(func() {
			defer g.counters.LogEvents.Add(1)
			if err := handler.run(logPhase, a.x, worker); err != nil {
				g.options.Log.Error("plugin failed in the log phase", "error", err, "request_id", a.x.requestID)
			}
		})
	}
}

// sent returns what Kong keeps of the response.
func (a *answerWriter) sent(now time.Time) *sentResponse {
	s := &sentResponse{
		status: a.status, source: sourceService, header: map[string]any{}, proxy: -1,
		total: now.Sub(a.x.began).Milliseconds(),
	}
	switch {
	case a.source != "":
		s.source = a.source
	case a.x.exit != nil:
		s.source = sourceExit
	}
	a.fillLatencies(s, now)
	if a.status == statusClientClosed {
		addLines(s.header, a.x.responseHeader, maxTableHeaders)
		s.header["connection"] = "close"
		return s
	}
	addLines(s.header, a.header, maxTableHeaders)
	if a.request.ProtoMajor == 1 {
		s.header["connection"] = "keep-alive"
		if a.request.Close {
			s.header["connection"] = "close"
		}
	}
	if a.chunked {
		s.header["transfer-encoding"] = "chunked"
		a.body += int64(len("0\r\n\r\n"))
	}
	s.size = a.body + headSize(s.status, s.header)
	if _, dated := s.header["date"]; !dated && s.source != sourceService {
		s.size += int64(len("Date: " + http.TimeFormat + "\r\n"))
	}
	return s
}

// sent returns what Kong would keep of a response to x.
func (r *Response) sent(x *exchange) *sentResponse {
	s := &sentResponse{status: r.Status, source: r.Source, header: map[string]any{}, proxy: -1}
	addLines(s.header, r.Header, maxTableHeaders)
	if r.Source != sourceExit && x.service != nil {
		s.proxy = 0
	}
	return s
}

func (a *answerWriter) fillLatencies(s *sentResponse, now time.Time) {
	s.kong = s.total
	if a.proxied.IsZero() {
		return
	}
	answered := a.answered
	if answered.IsZero() {
		answered = now
	}
	s.kong = a.proxied.Sub(a.x.began).Milliseconds()
	s.proxy, s.receive = answered.Sub(a.proxied).Milliseconds(), now.Sub(answered).Milliseconds()
}

// headSize returns the size of a response's status line and headers in HTTP/1.1.
func headSize(status int, table map[string]any) int64 {
	size := len("HTTP/1.1  \r\n\r\n") + len(strconv.Itoa(status)) + len(http.StatusText(status))
	for name, value := range table {
		lines, isList := value.([]any)
		if !isList {
			lines = []any{value}
		}
		for _, line := range lines {
			text, _ := line.(string) // of every header
			size += len(name) + len(": \r\n") + len(text)
		}
	}
	return int64(size)
}

// logMethods holds the simulated methods of the log phase, which Kong answers from what it has kept of the request.
// Those that read nginx's variables, and those that change the request or the response, raise an error there.
var logMethods = map[string]pdkMethod{
	"kong.log.serialize": serialize,
	"kong.request.get_header": lookupString(func(x *exchange, name string) string {
		return firstLine(x.headerTable(), name)
	}),
	"kong.response.get_header": lookupString(func(x *exchange, name string) string {
		return firstLine(x.sent.header, name)
	}),
	"kong.response.get_headers": func(x *exchange, _ []byte) ([]byte, error) { return encodeStruct(x.sent.header), nil },
	"kong.response.get_source":  answerString(func(x *exchange) string { return x.sent.source }),
	"kong.response.get_status": func(x *exchange, _ []byte) ([]byte, error) {
		return encodeMessage(&pb.Int{V: int32(x.sent.status)})
	},
	"kong.client.get_consumer":   pdkMethods["kong.client.get_consumer"],
	"kong.client.get_credential": pdkMethods["kong.client.get_credential"],
	"kong.ctx.shared.get":        pdkMethods["kong.ctx.shared.get"],
	"kong.ctx.shared.set":        pdkMethods["kong.ctx.shared.set"],
	"kong.router.get_route":      pdkMethods["kong.router.get_route"],
}

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

// logEntry returns the entry without what plugins have added to it: the part that has numbers, and what identifies the
// request.
func (x *exchange) logEntry() map[string]any {
	s := x.sent
	entry := map[string]any{
		"client_ip": x.forwardedIP, "started_at": x.began.UnixMilli(), "source": "kong",
		"latencies": map[string]any{"kong": s.kong, "proxy": s.proxy, "receive": s.receive, "request": s.total},
		"request": map[string]any{
			"id": x.requestID, "method": x.method, "size": x.size, "uri": x.requestURI,
			"headers": x.headerTable(),
		},
		"response": map[string]any{"status": s.status, "size": s.size, "headers": s.header},
	}
	if s.source == sourceService {
		entry["source"] = "upstream"
	}
	switch {
	case x.route == nil:
	case s.proxy < 0:
		entry["tries"] = []any{}
	default:
		entry["tries"] = []any{map[string]any{}} // without its fields: a balancer's
	}
	return entry
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
