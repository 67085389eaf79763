package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// errorTexts holds Kong's messages where neither a plugin nor the proxy gives one.
var errorTexts = map[int]string{
	http.StatusBadRequest:          "Bad request",
	http.StatusInternalServerError: "An unexpected error occurred",
	http.StatusBadGateway:          "An invalid response was received from the upstream server",
	http.StatusGatewayTimeout:      "The upstream server is timing out",
}

// respond ends the request with an answer of Kong's. pairs are names and values of headers.
func (x *exchange) respond(status int, body []byte, pairs ...string) {
	x.exit = &Exit{Status: status, Body: body, Header: http.Header{}}
	for i := 0; i+1 < len(pairs); i += 2 {
		setHeader(x.exit.Header, pairs[i], pairs[i+1])
	}
}

// fail ends the request as kong.response.error does for a client that accepts JSON. An empty message stands for Kong's
// own message for the status.
func (x *exchange) fail(status int, message string, pairs ...string) {
	setDefault(&message, errorTexts[status])
	if x.isGRPC() { // Kong drops the message here
		x.respond(status, nil, append(pairs, "Content-Type", grpcType)...)
		x.completeGRPC(x.exit)
		return
	}
	body := fmt.Appendf(nil, "{\n  \"message\":\"%s\",\n  \"request_id\":\"%s\"\n}", message, x.requestID)
	x.respond(status, body, append(pairs, "Content-Type", "application/json; charset=utf-8")...)
}

// denyJSON ends the request with 401 and the table as its body, as kong.response.exit does.
func (x *exchange) denyJSON(table map[string]string, challenge string) error {
	body, err := json.Marshal(table)
	if err != nil {
		return fmt.Errorf("encode response body: %w", err)
	}
	x.respond(http.StatusUnauthorized, body,
		"Content-Type", "application/json; charset=utf-8", "WWW-Authenticate", challenge)
	return nil
}
