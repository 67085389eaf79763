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
		if len(route.Paths) == 0 {
			continue
		}
		callers, err := callersOf(config, route)
		if err != nil {
			return "", err
		}
		if len(callers) > 1 && listed {
			callers = callers[:1]
		}
		listed = listed || len(callers) > 1
		method := ""
		if len(route.Methods) > 0 && route.Methods[0] != "GET" {
			method = " -X " + route.Methods[0]
		}
		for _, c := range callers {
			fmt.Fprintf(&lines, "  curl -i%s %s%s%s   # %s\n", method, url, route.Paths[0], c.header, c.who)
		}
	}
	return lines.String(), nil
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
		for _, c := range config.Consumers {
			header, err := credential(p.Name, settings, c)
			if err != nil {
				return nil, err
			}
			if header != "" {
				who := append([]string{cmp.Or(c.Username, c.CustomID)}, c.Tags...)
				callers = append(callers, caller{strings.Join(who, ", "), header})
			}
		}
		if p.Name == "key-auth" || p.Name == "jwt" {
			_, isOpen = settings["anonymous"]
		}
	}
	if isOpen {
		callers = append(callers, caller{who: "anonymous"})
	}
	return callers, nil
}

// credential returns the header by which an authentication plugin knows a consumer, or "".
func credential(plugin string, settings map[string]any, c *gateway.Consumer) (string, error) {
	switch {
	case plugin == "key-auth" && len(c.Keys) > 0:
		name := "apikey"
		if names, _ := settings["key_names"].([]any); len(names) > 0 {
			name = fmt.Sprint(names[0])
		}
		return fmt.Sprintf(" -H '%s: %s'", name, c.Keys[0].Key), nil
	case plugin == "jwt" && len(c.Secrets) > 0:
		token, err := signedToken(c.Secrets[0].Key, c.Secrets[0].Secret)
		return fmt.Sprintf(" -H 'Authorization: Bearer %s'", token), err
	}
	return "", nil
}
