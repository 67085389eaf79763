package gateway

import (
	"fmt"
	"net/http"
)

// authPlugin is one configuration of a plugin that identifies consumers.
type authPlugin struct {
	config       *compiledConfig
	anonymous    string // the consumer of a request without a valid credential; "": it is denied
	authenticate func(x *exchange) (deny func() error)
}

// access identifies the consumer, or denies the request.
func (p authPlugin) access(x *exchange, _ int) error {
	if p.anonymous != "" && x.credentialID != "" {
		return nil // another auth plugin has identified the consumer
	}
	deny := p.authenticate(x)
	switch {
	case deny == nil:
	case p.anonymous != "":
		x.identifyAnonymous(p.config, p.anonymous)
	default:
		return deny()
	}
	return nil
}

// identify sets the consumer for the plugins and the service, as set_consumer of Kong's auth plugins does. It replaces
// the headers of these names that the client sent. identifier is "" for the anonymous consumer.
func (x *exchange) identify(consumer *Consumer, credentialID, identifier string) {
	x.consumer, x.credentialID = consumer, credentialID
	anonymous := ""
	if credentialID == "" {
		anonymous = "true"
	}
	replaceRequestHeaders(x.header, map[string]string{
		"X-Consumer-Id": consumer.ID, "X-Consumer-Custom-Id": consumer.CustomID,
		"X-Consumer-Username": consumer.Username, "X-Credential-Identifier": identifier,
		"X-Anonymous-Consumer": anonymous,
	})
}

// replaceRequestHeaders sets each header, and drops those whose value is "".
func replaceRequestHeaders(header http.Header, values map[string]string) {
	for name, value := range values {
		if value == "" {
			header.Del(name)
			continue
		}
		header[name] = []string{value}
	}
}

// identifyAnonymous sets the anonymous consumer, which the setting names by id or by username.
func (x *exchange) identifyAnonymous(config *compiledConfig, setting string) {
	consumer := config.consumers[setting]
	if consumer == nil {
		x.fail(http.StatusInternalServerError,
			fmt.Sprintf("anonymous consumer %s is configured but doesn't exist", setting))
		return
	}
	x.identify(consumer, "", "")
}

// setting returns a field of a plugin config that its schema has checked; the zero value where it is null.
func setting[T any](config map[string]any, name string) T {
	value, _ := config[name].(T)
	return value
}

// listSetting returns a list of strings.
func listSetting(config map[string]any, name string) []string {
	var texts []string
	for _, item := range setting[[]any](config, name) {
		if s, ok := item.(string); ok {
			texts = append(texts, s)
		}
	}
	return texts
}
