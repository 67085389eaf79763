// Package deck reads decK files (format 3.0): the entities a Kong holds, with
// nested ones lifted to the top, references resolved, Kong's defaults filled in
// and missing ids derived as Kong derives them. What a plugin's config may hold
// is not known here; it stays the tree that was read.
package deck

import (
	"fmt"
	"slices"
	"sort"
	"strings"
)

// Config is everything a decK file declares. Parse builds it; it is not
// changed afterwards.
type Config struct {
	Services  []*Service
	Routes    []*Route
	Consumers []*Consumer
	// Plugins are the entries of every level, in document order.
	Plugins []*Plugin
}

// Service is an upstream. Timeouts are in milliseconds, times in seconds since
// the epoch.
type Service struct {
	ID, Name, Protocol, Host, Path            string
	Port, Retries                             int
	ConnectTimeout, WriteTimeout, ReadTimeout int
	Tags                                      []string
	CreatedAt, UpdatedAt                      int64
}

// Route says which requests go to a service. A route without a Service only
// runs plugins. Paths that begin with "~" are regular expressions.
type Route struct {
	ID, Name                         string
	Protocols, Methods, Hosts, Paths []string
	Headers                          map[string][]string
	RedirectStatus, RegexPriority    int
	StripPath, PreserveHost          bool
	Tags                             []string
	Service                          *Service
	CreatedAt, UpdatedAt             int64
}

// Consumer is somebody Kong can recognise by one of the credentials.
type Consumer struct {
	ID, Username, CustomID string
	Tags                   []string
	Keys                   []*Key
	Secrets                []*Secret
	CreatedAt, UpdatedAt   int64
}

// Key is a key-auth credential.
type Key struct {
	ID, Key string
}

// Secret is a jwt credential: Key is matched against the token's key claim,
// Secret verifies its signature by Algorithm.
type Secret struct {
	ID, Key, Secret, Algorithm string
}

// Plugin is one configuration of a plugin, for the requests of its scope: nil
// Route, Service and Consumer mean all of them.
type Plugin struct {
	ID, Name, InstanceName string
	Enabled                bool
	Protocols, Tags        []string
	Route                  *Route
	Service                *Service
	Consumer               *Consumer
	// Config holds nil, bool, float64, string, []any and map[string]any. Nil means that the file has none; it has a
	// null, which Kong denies, where ConfigNull is true.
	Config     any
	ConfigNull bool
	// Path is where the file declares it, such as
	// "services[0].routes[1].plugins[0]".
	Path string
}

// Fault is something wrong in a file.
type Fault struct {
	Path, Message string
}

// Faults is all that is wrong in a file, as an error.
type Faults []Fault

func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, fault := range f {
		lines[i] = fault.Path + ": " + fault.Message
	}
	return strings.Join(lines, "\n")
}

func (f *Faults) add(path, format string, args ...any) {
	*f = append(*f, Fault{Path: path, Message: fmt.Sprintf(format, args...)})
}

func (f Faults) orNil() error {
	if len(f) == 0 {
		return nil
	}
	return f
}

func oneOf(value string, allowed []string) bool {
	for _, a := range allowed {
		if value == a {
			return true
		}
	}
	return false
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

// Allows reports whether the route takes requests of a protocol.
func (r *Route) Allows(protocol string) bool { return slices.Contains(r.Protocols, protocol) }

// SpeaksGRPC reports whether the route is one for gRPC calls. In Kong such a
// route takes no others.
func (r *Route) SpeaksGRPC() bool { return r.Allows("grpc") || r.Allows("grpcs") }

// SpeaksGRPC reports whether the upstream is called over HTTP/2 alone.
func (s *Service) SpeaksGRPC() bool { return s.Protocol == "grpc" || s.Protocol == "grpcs" }
