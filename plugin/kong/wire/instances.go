package wire

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"unique"
)

// Instance holds the functions of a plugin for one config. The goroutines of several connections call them at once.
type Instance struct {
	// Access handles the access phase of one request. ctx ends when the drain time of the server is over. An error is
	// counted and logged once for its text; the headers and calls that Access added to e are sent all the same. nil: the
	// request passes.
	Access func(ctx context.Context, e *Event) error
	// Log handles the log phase of one request, after the client has its response. Kong may send an event again, if it
	// has lost the connection meanwhile. An error is counted and logged as one of Access is, and so is a panic: neither
	// closes the connection. nil: nothing happens.
	Log func(ctx context.Context, e *Event) error
	// Fault handles an event in which Access panicked; all that Access had not sent is dropped. It should not ask, because
	// the time budget may be used up. nil: the request passes.
	Fault func(e *Event)
	// Close is called once, when Kong has closed the instance or replaced it. nil: nothing is to be closed.
	Close func()
}

// Config is the config of one instance. Its slices are valid until Start returns.
type Config struct {
	JSON []byte // as Kong has sent it; not necessarily valid JSON
	// Common is JSON without the fields that differ between Kong's workers. It is equal for the instances of one config.
	Common []byte
	// PluginID is the id of the plugin config in Kong, and RouteID the one of its route. Each is "" if Kong sends none.
	PluginID, RouteID string

	id int32 // 0: Kong gives none
}

// parseConfig reads the fields that Kong adds to a config. A field of the wrong type counts as absent.
func parseConfig(raw []byte) Config {
	c := Config{JSON: raw, Common: raw}
	var parts map[string]json.RawMessage
	if json.Unmarshal(raw, &parts) != nil {
		return c
	}
	var id int32
	if json.Unmarshal(parts["__seq__"], &id) == nil && id > 0 { // Kong sends 0 to all configs when it cannot count
		c.id = id
	}
	for name, target := range map[string]*string{"__plugin_id": &c.PluginID, "route_id": &c.RouteID} {
		if json.Unmarshal(parts[name], target) != nil {
			*target = ""
		}
	}
	delete(parts, "__seq__")
	if common, err := json.Marshal(parts); err == nil {
		c.Common = common
	}
	return c
}

// started is an instance that Kong has started and not closed.
type started struct {
	Instance
	id     int32
	common unique.Handle[string] // Config.Common: one text for all workers of Kong
}

// instances holds the instances by id.
type instances struct {
	mu     sync.RWMutex // held only for an access to the map: every event reads it
	byID   map[int32]*started
	lastID int32 // of those that got their id here
}

// firstOwnID is above the ids that Kong gives, which it counts from 1.
const firstOwnID = 1 << 30

// get returns the instance with an id, or nil.
func (r *instances) get(id int32) *started {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byID[id]
}

func (r *instances) all() []*started {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Collect(maps.Values(r.byID))
}

// add adds the instance of a config, and closes an earlier one with the same id.
func (r *instances) add(config Config, instance Instance) *started {
	in := &started{Instance: instance, id: config.id, common: unique.Make(string(config.Common))}
	r.mu.Lock()
	if in.id == 0 {
		in.id = r.lastID + 1
	}
	r.lastID = max(r.lastID, in.id)
	replaced := r.byID[in.id]
	r.byID[in.id] = in
	r.mu.Unlock()
	replaced.close()
	return in
}

// remove removes an instance and closes it.
func (r *instances) remove(id int32) {
	r.mu.Lock()
	removed := r.byID[id]
	delete(r.byID, id)
	r.mu.Unlock()
	removed.close()
}

func (in *started) close() {
	if in != nil && in.Close != nil {
		in.Close()
	}
}
