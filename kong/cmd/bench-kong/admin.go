package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

// adminAPI is Kong's Admin API.
type adminAPI struct {
	url     string
	headers lines
	client  http.Client
}

func newAdminAPI(url string, headers lines) *adminAPI {
	return &adminAPI{url: strings.TrimSuffix(url, "/"), headers: headers, client: http.Client{Timeout: 10 * time.Second}}
}

// install adds the entities of the bench, and returns the function that removes them. It leaves out rows whose plugin
// the Kong does not have. What an earlier run has left is removed first.
func (a *adminAPI) install(ctx context.Context, b *bench) (remove func() error, err error) {
	var node struct {
		Configuration struct{ Database string }
		Plugins       struct {
			AvailableOnServer map[string]json.RawMessage `json:"available_on_server"`
		}
	}
	if err := a.call(ctx, http.MethodGet, "/", nil, &node); err != nil {
		return nil, err
	}
	if node.Configuration.Database == "off" {
		return nil, errors.New("this Kong has no database, so its Admin API adds no routes: " +
			"put what -print-config prints into its declarative file, and run again with -installed")
	}
	for _, plugin := range []string{"bench-floor", "tenant-rate-limiting", "rate-limiting"} {
		if _, ok := node.Plugins.AvailableOnServer[plugin]; !ok {
			b.skip(plugin, "this Kong does not have the plugin "+plugin)
		}
	}
	remove = func() error { return a.remove(context.WithoutCancel(ctx)) }
	if err := remove(); err != nil {
		return nil, err
	}
	if err := a.add(ctx, b); err != nil {
		return nil, errors.Join(err, remove())
	}
	return remove, nil
}

func (a *adminAPI) add(ctx context.Context, b *bench) error {
	type addition struct {
		path string
		what entity
	}
	all := []addition{
		{"/services", b.serviceEntity()},
		{"/consumers", b.consumerEntity()},
		{"/consumers/" + prefix + "/key-auth", b.credential()},
	}
	for i := range b.routes {
		r := &b.routes[i]
		all = append(all, addition{"/services/" + prefix + "/routes", r.entity()})
		for _, plugin := range r.plugins() {
			all = append(all, addition{fmt.Sprintf("/routes/%s-%s/plugins", prefix, r.name), plugin})
		}
	}
	for _, add := range all {
		if err := a.call(ctx, http.MethodPost, add.path, add.what, nil); err != nil {
			return err
		}
	}
	return nil
}

// remove deletes the entities of the bench; their plugins and credentials go with them. It goes on after an error.
func (a *adminAPI) remove(ctx context.Context) (err error) {
	var routes struct{ Data []struct{ ID, Name string } }
	found := a.call(ctx, http.MethodGet, "/services/"+prefix+"/routes?size=1000", nil, &routes)
	if found != nil && !errors.Is(found, errNotFound) {
		err = found
	}
	var paths []string
	for _, r := range routes.Data {
		if strings.HasPrefix(r.Name, prefix+"-") {
			paths = append(paths, "/routes/"+r.ID)
		}
	}
	for _, path := range slices.Concat(paths, []string{"/services/" + prefix, "/consumers/" + prefix}) {
		if failed := a.call(ctx, http.MethodDelete, path, nil, nil); failed != nil && !errors.Is(failed, errNotFound) {
			err = errors.Join(err, failed)
		}
	}
	return err
}

var errNotFound = errors.New("404 Not Found")

// call sends a request with body what, and decodes the response into answer; either may be nil.
func (a *adminAPI) call(ctx context.Context, method, path string, what entity, answer any) error {
	var body io.Reader
	if what != nil {
		text, err := json.Marshal(what)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, a.url+path, body)
	if err != nil {
		return err
	}
	if what != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	for _, header := range a.headers {
		name, value, ok := strings.Cut(header, ":")
		if !ok {
			return fmt.Errorf("-admin-header %q: must be like \"Kong-Admin-Token: secret\"", header)
		}
		request.Header.Set(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	response, err := a.client.Do(request)
	if err != nil {
		return fmt.Errorf("call the Admin API: %w", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 8<<20))
	switch {
	case err != nil:
		return fmt.Errorf("call the Admin API: %s %s: read the answer: %w", method, path, err)
	case response.StatusCode == http.StatusNotFound:
		return fmt.Errorf("call the Admin API: %s %s: %w", method, path, errNotFound)
	case response.StatusCode >= 300:
		return fmt.Errorf("call the Admin API: %s %s: %s: %s", method, path, response.Status, bytes.TrimSpace(text))
	case answer == nil:
		return nil
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("call the Admin API: %s %s: %w", method, path, err)
	}
	return nil
}
