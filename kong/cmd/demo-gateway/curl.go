package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// curlLines returns requests to try, one in each line: all callers on the first route that several can call, and one
// caller on each other route.
func curlLines(config *gateway.Config, url string) (string, error) {
	var lines strings.Builder
	listed := false
	for _, route := range config.Routes {
		if len(route.Paths) > 0 && strings.HasPrefix(route.Paths[0], "~") {
			continue // a pattern is no path
		}
		callers, err := callersOf(config, route)
		if err != nil {
			return "", err
		}
		if len(callers) > 1 && listed {
			callers = callers[:1]
		}
		listed = listed || len(callers) > 1
		for _, c := range callers {
			fmt.Fprintf(&lines, "  curl -i%s%s   # %s\n", target(route, url), c.header, c.who)
		}
	}
	return lines.String(), nil
}

// target returns the arguments of curl that reach a route.
func target(route *gateway.Route, url string) string {
	args := ""
	if len(route.Methods) > 0 && route.Methods[0] != "GET" {
		args += " -X " + route.Methods[0]
	}
	if len(route.Hosts) > 0 {
		args += fmt.Sprintf(" -H 'Host: %s'", route.Hosts[0])
	}
	args += " " + url
	if len(route.Paths) > 0 {
		args += route.Paths[0]
	}
	return args
}

// caller is who sends a request, and the header that proves it.
type caller struct{ who, header string }

// callersOf returns who can call a route, given the plugins that identify callers there.
func callersOf(config *gateway.Config, route *gateway.Route) (callers []caller, err error) {
	isOpen := true
	for _, p := range config.Plugins {
		if p.Route != nil && p.Route != route || p.Service != nil && p.Service != route.Service {
			continue
		}
		settings, _ := p.Config.(map[string]any)
		var found []caller
		switch p.Name {
		case "key-auth":
			found = withKeys(config, settings)
		case "jwt":
			found, err = withTokens(config)
		default:
			continue
		}
		if err != nil {
			return nil, err
		}
		callers = append(callers, found...)
		_, anonymous := settings["anonymous"]
		isOpen = isOpen && anonymous
	}
	if isOpen {
		callers = append(callers, caller{who: "anonymous"})
	}
	return callers, nil
}

// withKeys returns the consumers that have a key, given the settings of key-auth.
func withKeys(config *gateway.Config, settings map[string]any) (callers []caller) {
	name := "apikey"
	if names, _ := settings["key_names"].([]any); len(names) > 0 {
		name = fmt.Sprint(names[0])
	}
	for _, c := range config.Consumers {
		if len(c.Keys) > 0 {
			callers = append(callers, caller{describe(c), fmt.Sprintf(" -H '%s: %s'", name, c.Keys[0].Key)})
		}
	}
	return callers
}

// withTokens returns the consumers that can sign a token.
func withTokens(config *gateway.Config) (callers []caller, err error) {
	for _, c := range config.Consumers {
		if len(c.Secrets) == 0 {
			continue
		}
		token, err := signedToken(c.Secrets[0].Key, c.Secrets[0].Secret)
		if err != nil {
			return nil, err
		}
		callers = append(callers, caller{describe(c), fmt.Sprintf(" -H 'Authorization: Bearer %s'", token)})
	}
	return callers, nil
}

// describe names a consumer, with its tags.
func describe(c *gateway.Consumer) string {
	name := cmp.Or(c.Username, c.CustomID)
	return strings.Join(append([]string{name}, c.Tags...), ", ")
}
