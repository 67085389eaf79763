package gateway

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"strings"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
)

// nginxMethods are kong.nginx, kong.ctx.shared, kong.node and kong.log.
func nginxMethods() map[string]pdkMethod {
	methods := map[string]pdkMethod{
		"kong.nginx.get_var": withString(func(x *exchange, name string) ([]byte, error) {
			return stringAnswer(x.nginxVar(name)), nil
		}),
		"kong.nginx.get_tls1_version_str": asks(func(*exchange) []byte { return nil }), // no TLS listener
		"kong.nginx.get_subsystem":        asks(func(*exchange) []byte { return stringAnswer("http") }),
		"kong.nginx.req_start_time": asks(func(x *exchange) []byte {
			return numberAnswer(float64(x.started.UnixMilli()) / 1000)
		}),
		"kong.nginx.set_ctx": withKV(func(x *exchange, key string, value any) error {
			put(&x.ctx, key, value)
			return nil
		}),
		"kong.nginx.get_ctx": withString(func(x *exchange, key string) ([]byte, error) {
			if key == "plugins" {
				return nil, raise("cannot encode a value of type function")
			}
			return appendValue(nil, x.nginxCtx(key)), nil
		}),
		"kong.ctx.shared.set": withKV(func(x *exchange, key string, value any) error {
			put(&x.shared, key, value)
			return nil
		}),
		"kong.ctx.shared.get": withString(func(x *exchange, key string) ([]byte, error) {
			return appendValue(nil, x.shared[key]), nil
		}),
		"kong.node.get_id":           asks(func(x *exchange) []byte { return stringAnswer(x.node.id) }),
		"kong.node.get_memory_stats": memoryStats,
		"kong.log.serialize":         laterPhase,
		"kong.log.set_serialize_value": withKV(func(x *exchange, key string, value any) error {
			put(&x.serialized, key, value)
			return nil
		}),
	}
	maps.Copy(methods, logMethods())
	return methods
}

func put(table *map[string]any, key string, value any) {
	if *table == nil {
		*table = map[string]any{}
	}
	if value == nil {
		delete(*table, key)
		return
	}
	(*table)[key] = value
}

// nginxCtx is a field of ngx.ctx: what plugins set, and the few of Kong's own
// that a plugin has a use for.
func (x *exchange) nginxCtx(key string) any {
	if value, set := x.ctx[key]; set {
		return value
	}
	switch key {
	case "authenticated_consumer":
		return consumerTable(x.consumer)
	case "authenticated_credential":
		if x.credentialID != "" {
			return map[string]any{"id": x.credentialID}
		}
	}
	return nil
}

func consumerTable(c *Consumer) any {
	if c == nil {
		return nil
	}
	table := map[string]any{
		"id": c.ID, "created_at": float64(c.CreatedAt), "updated_at": float64(c.UpdatedAt),
	}
	if c.Username != "" {
		table["username"] = c.Username
	}
	if c.CustomID != "" {
		table["custom_id"] = c.CustomID
	}
	if len(c.Tags) > 0 {
		tags := make([]any, len(c.Tags))
		for i, tag := range c.Tags {
			tags[i] = tag
		}
		table["tags"] = tags
	}
	return table
}

// memoryStats answers in Kong's shape; there is no Lua to measure here, so the
// numbers are the shared memory zones' default sizes, unused.
func memoryStats(*exchange, []byte) ([]byte, error) {
	zone := func(size int64) *pb.MemoryStats_LuaSharedDicts_DictStats {
		return &pb.MemoryStats_LuaSharedDicts_DictStats{Capacity: size}
	}
	return message(&pb.MemoryStats{
		LuaSharedDicts: &pb.MemoryStats_LuaSharedDicts{Kong: zone(5 << 20), KongDbCache: zone(128 << 20)},
		WorkersLuaVms:  []*pb.MemoryStats_WorkerLuaVm{{Pid: int64(os.Getpid())}},
	})
}

// logMethods are kong.log's levels; nginx has more of them than slog.
func logMethods() map[string]pdkMethod {
	methods := map[string]pdkMethod{}
	for name, level := range map[string]slog.Level{
		"alert": slog.LevelError, "crit": slog.LevelError, "err": slog.LevelError, "warn": slog.LevelWarn,
		"notice": slog.LevelInfo, "info": slog.LevelInfo, "debug": slog.LevelDebug,
	} {
		methods["kong.log."+name] = func(x *exchange, arg []byte) ([]byte, error) {
			list, err := readList(arg, 0)
			if err != nil {
				return nil, err
			}
			x.logf(level, "kong.log."+name+": "+concatenated(list))
			return nil, nil
		}
	}
	return methods
}

// concatenated is kong.log's way with its arguments.
func concatenated(list []any) string {
	var out strings.Builder
	for _, item := range list {
		switch v := item.(type) {
		case nil:
			out.WriteString("nil")
		case float64:
			out.WriteString(luaNumber(v))
		default:
			fmt.Fprint(&out, v)
		}
	}
	return out.String()
}
