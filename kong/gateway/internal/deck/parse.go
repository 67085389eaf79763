package deck

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

// httpProtocols are those of the entities this package reads; Kong's stream
// protocols are refused.
var httpProtocols = []string{"http", "https", "grpc", "grpcs"}

// Load reads the decK file at path. Entities without dates get the time now.
func Load(path string, now time.Time) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read decK file: %w", err)
	}
	config, err := Parse(data, now)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return config, nil
}

// Parse reads a decK document. The error is Faults with the paths of all that
// is wrong, or a yaml error with a line when the document has not the shape of
// a decK file (unknown keys included).
func Parse(data []byte, now time.Time) (*Config, error) {
	var document file
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	if err := decoder.Decode(&document); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("parse decK file: %w", err)
	}
	r := newReader(now)
	if document.FormatVersion != "3.0" {
		r.faults.add("_format_version", "expected \"3.0\", got %q", document.FormatVersion)
	}
	if len(document.Upstreams) > 0 {
		r.faults.add("upstreams", "load balancing is not simulated")
	}
	for i := range document.Services {
		r.service(fmt.Sprintf("services[%d]", i), &document.Services[i])
	}
	for i := range document.Routes {
		r.route(fmt.Sprintf("routes[%d]", i), &document.Routes[i], nil)
	}
	for i := range document.Consumers {
		r.consumer(fmt.Sprintf("consumers[%d]", i), &document.Consumers[i])
	}
	r.plugins("", document.Plugins, scope{})
	r.resolve()
	return r.config, r.faults.orNil()
}

// reader gathers entities while it walks the document; references are resolved
// when all names are known.
type reader struct {
	now      int64
	config   *Config
	faults   Faults
	taken    map[string]string // kind and unique value → path of its owner
	services map[string]*Service
	routes   map[string]*Route
	people   map[string]*Consumer
	pending  []func()
}

func newReader(now time.Time) *reader {
	return &reader{
		now: now.Unix(), config: &Config{}, taken: map[string]string{},
		services: map[string]*Service{}, routes: map[string]*Route{}, people: map[string]*Consumer{},
	}
}

// scope is the entity a plugin is nested in.
type scope struct {
	route    *Route
	service  *Service
	consumer *Consumer
}

func (r *reader) resolve() {
	for _, check := range r.pending {
		check()
	}
}

// claim notes that path owns a value that must be unique among its kind.
func (r *reader) claim(kind, value, path string) {
	if value == "" {
		return
	}
	if owner, taken := r.taken[kind+"\x00"+value]; taken {
		r.faults.add(path, "%s %q is already that of %s", kind, value, owner)
		return
	}
	r.taken[kind+"\x00"+value] = path
}

// id checks a given id or derives one from key.
func (r *reader) id(given, kind, key, path string) string {
	if given == "" {
		given = derivedID(kind, key)
	} else if !IsUUID(given) {
		r.faults.add(path+".id", "expected a valid UUID")
	}
	r.claim("id of "+kind, given, path)
	return given
}

func (r *reader) service(path string, e *serviceEntry) {
	s := &Service{
		Name: e.Name, Protocol: or(e.Protocol, "http"), Host: e.Host, Path: e.Path,
		Port: deref(e.Port, 80), Retries: deref(e.Retries, 5), Tags: e.Tags,
		ConnectTimeout: deref(e.ConnectTimeout, 60000), WriteTimeout: deref(e.WriteTimeout, 60000),
		ReadTimeout: deref(e.ReadTimeout, 60000),
		CreatedAt:   deref(e.CreatedAt, r.now), UpdatedAt: deref(e.UpdatedAt, r.now),
	}
	s.ID = r.id(e.ID, "services", or(e.Name, path), path)
	if e.URL != "" {
		r.serviceURL(path, s, e.URL)
	}
	if s.Host == "" {
		r.faults.add(path+".host", "required field missing")
	}
	if !oneOf(s.Protocol, httpProtocols) {
		r.faults.add(path+".protocol", "expected one of: %s", strings.Join(httpProtocols, ", "))
	}
	if s.Port < 0 || s.Port > 65535 {
		r.faults.add(path+".port", "value should be between 0 and 65535")
	}
	if s.Path != "" && s.Path[0] != '/' {
		r.faults.add(path+".path", "should start with: /")
	}
	if e.Enabled != nil && !*e.Enabled {
		r.faults.add(path+".enabled", "disabled services are not simulated")
	}
	r.claim("service name", s.Name, path)
	r.services[s.ID] = s
	if s.Name != "" {
		r.services[s.Name] = s
	}
	r.config.Services = append(r.config.Services, s)
	for i := range e.Routes {
		r.route(fmt.Sprintf("%s.routes[%d]", path, i), &e.Routes[i], s)
	}
	r.plugins(path+".", e.Plugins, scope{service: s})
}

func (r *reader) serviceURL(path string, s *Service, raw string) {
	parsed, err := url.Parse(raw)
	if err != nil || parsed.Hostname() == "" {
		r.faults.add(path+".url", "invalid value: %s", raw)
		return
	}
	s.Protocol, s.Host, s.Path, s.Port = parsed.Scheme, parsed.Hostname(), parsed.Path, 80
	if s.Protocol == "https" {
		s.Port = 443
	}
	if port := parsed.Port(); port != "" {
		number, err := strconv.Atoi(port)
		if err != nil {
			r.faults.add(path+".url", "invalid port: %s", port)
			return
		}
		s.Port = number
	}
}

func or(value, fallback string) string {
	if value == "" {
		return fallback
	}
	return value
}

func deref[T any](value *T, fallback T) T {
	if value == nil {
		return fallback
	}
	return *value
}
