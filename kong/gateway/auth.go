package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// identify makes a consumer known to the plugins and to the service, as the
// set_consumer of Kong's auth plugins does. Headers of these names that the
// client sent do not survive it. identifier is "" for the anonymous consumer.
func (x *exchange) identify(consumer *Consumer, credentialID, identifier string) {
	x.consumer, x.credentialID = consumer, credentialID
	anonymous := ""
	if credentialID == "" {
		anonymous = "true"
	}
	for name, value := range map[string]string{
		"X-Consumer-Id": consumer.ID, "X-Consumer-Custom-Id": consumer.CustomID,
		"X-Consumer-Username": consumer.Username, "X-Credential-Identifier": identifier,
		"X-Anonymous-Consumer": anonymous,
	} {
		if value == "" {
			x.header.Del(name)
			continue
		}
		x.header[name] = []string{value}
	}
}

// fallBack makes the request the anonymous consumer's.
func (x *exchange) fallBack(s *state, anonymous string) {
	consumer := s.consumer(anonymous, true)
	if consumer == nil {
		x.fail(http.StatusInternalServerError,
			fmt.Sprintf("anonymous consumer %s is configured but doesn't exist", anonymous))
		return
	}
	x.identify(consumer, "", "")
}

// challenge ends the request with kong.response.error(401).
func (x *exchange) challenge(message, authenticate string) {
	x.fail(http.StatusUnauthorized, message)
	x.exit.headers.set("WWW-Authenticate", []string{authenticate})
}

// exitJSON ends the request with kong.response.exit(status, table).
func (x *exchange) exitJSON(status int, body any, authenticate string) error {
	encoded, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode response body: %w", err)
	}
	x.exit = &exitCall{status: status, body: encoded}
	x.exit.headers.set("Content-Type", []string{"application/json; charset=utf-8"})
	if authenticate != "" {
		x.exit.headers.set("WWW-Authenticate", []string{authenticate})
	}
	return nil
}

// Typed reads of a config that its schema has checked.

func textOf(config map[string]any, name string) string {
	s, _ := config[name].(string)
	return s
}

func boolOf(config map[string]any, name string) bool {
	b, _ := config[name].(bool)
	return b
}

func textsOf(config map[string]any, name string) []string {
	var out []string
	list, _ := config[name].([]any)
	for _, item := range list {
		if s, ok := item.(string); ok {
			out = append(out, s)
		}
	}
	return out
}
