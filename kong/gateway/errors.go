package gateway

import (
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"strconv"
	"strings"
)

const levelWarn = slog.LevelWarn

// errorTexts are Kong's messages where a plugin or the proxy gives none.
var errorTexts = map[int]string{
	http.StatusBadRequest:          "Bad request",
	http.StatusInternalServerError: "An unexpected error occurred",
	http.StatusBadGateway:          "An invalid response was received from the upstream server",
	http.StatusServiceUnavailable:  "The upstream server is currently unavailable",
	http.StatusGatewayTimeout:      "The upstream server is timing out",
}

// errorTemplates are Kong's bodies by content type; %[1]s is the message and
// %[2]s the request's id.
var errorTemplates = map[string]string{
	"application/json; charset=utf-8": "{\n  \"message\":\"%[1]s\",\n  \"request_id\":\"%[2]s\"\n}",
	"text/plain; charset=utf-8":       "%[1]s\nrequest_id: %[2]s\n",
	"application/xml; charset=utf-8": `<?xml version="1.0" encoding="UTF-8"?>
<error>
  <message>%[1]s</message>
  <requestid>%[2]s</requestid>
</error>
`,
	"text/html; charset=utf-8": `<!doctype html>
<html>
  <head>
    <meta charset="utf-8">
    <title>Error</title>
  </head>
  <body>
    <h1>Error</h1>
    <p>%[1]s.</p>
    <p>request_id: %[2]s</p>
  </body>
</html>
`,
}

// fail ends the request with kong.response.error: a body in the form that the
// client accepts. message "" is Kong's own for the status.
func (x *exchange) fail(status int, message string) {
	if message == "" {
		message = errorTexts[status]
	}
	if x.isGRPC() { // the message is lost, as in Kong
		x.exit = &exitCall{status: status}
		x.exit.headers.set("Content-Type", []string{grpcType})
		x.completeGRPC(x.exit)
		return
	}
	contentType := errorType(x.header["Accept"])
	x.exit = &exitCall{status: status, body: fmt.Appendf(nil, errorTemplates[contentType], message, x.requestID)}
	x.exit.headers.set("Content-Type", []string{contentType})
}

// errorType negotiates as Kong does: the first of the highest quality, JSON
// when none fits.
func errorType(accept []string) string {
	const fallback = "application/json; charset=utf-8"
	best, quality := fallback, 0.0
	for part := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		mediaType, parameters, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		q := 1.0
		if text, given := parameters["q"]; given {
			if q, err = strconv.ParseFloat(text, 64); err != nil {
				continue
			}
		}
		if q <= quality {
			continue
		}
		switch quality = q; mediaType {
		case "text/html", "application/xml", "text/plain", "application/json":
			best = mediaType + "; charset=utf-8"
		case "text/*":
			best = "text/plain; charset=utf-8"
		default:
			best = fallback
		}
	}
	return best
}
