package spec

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	lua "github.com/yuin/gopher-lua"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// sandboxed are functions of Lua that Kong's sandbox has, which is the default of untrusted_lua.
const sandboxed = `assert error ipairs next pairs pcall print select tonumber tostring type unpack xpcall
	string.byte string.char string.find string.format string.gmatch string.gsub string.len string.lower string.match
	string.rep string.reverse string.sub string.upper`

// sandbox runs Lua functions as Kong's plugin post-function does, in the body filter.
type sandbox struct {
	mu       sync.Mutex
	machine  *lua.LState
	env      *lua.LTable
	compiled map[string]*lua.LFunction // by code: as Kong, it compiles a function once
}

// newSandbox returns a sandbox without kong and ngx. It has only memory to free, so nothing closes it: a response may
// still pass it while a failed test ends.
func newSandbox() *sandbox {
	s := &sandbox{machine: lua.NewState(lua.Options{SkipOpenLibs: true}), compiled: map[string]*lua.LFunction{}}
	lua.OpenBase(s.machine)
	lua.OpenString(s.machine)
	s.env = s.machine.NewTable()
	for _, name := range strings.Fields(sandboxed) {
		from, to := s.machine.G.Global, s.env
		if library, function, nested := strings.Cut(name, "."); nested {
			name, from = function, from.RawGetString(library).(*lua.LTable)
			if _, made := to.RawGetString(library).(*lua.LTable); !made {
				to.RawSetString(library, s.machine.NewTable())
			}
			to = to.RawGetString(library).(*lua.LTable)
		}
		to.RawSetString(name, from.RawGetString(name))
	}
	return s
}

// table returns a table whose fields are read and written by functions.
func (s *sandbox) table(get func(string) any, set func(string, any)) *lua.LTable {
	access := s.machine.NewTable()
	access.RawSetString("__index", s.machine.NewFunction(func(m *lua.LState) int {
		switch value := get(m.CheckString(2)).(type) {
		case string:
			m.Push(lua.LString(value))
		case float64:
			m.Push(lua.LNumber(value))
		case bool:
			m.Push(lua.LBool(value))
		default:
			m.Push(lua.LNil)
		}
		return 1
	}))
	access.RawSetString("__newindex", s.machine.NewFunction(func(m *lua.LState) int {
		switch value := m.Get(3).(type) {
		case lua.LString:
			set(m.CheckString(2), string(value))
		case lua.LNumber:
			set(m.CheckString(2), float64(value))
		case lua.LBool:
			set(m.CheckString(2), bool(value))
		case *lua.LNilType:
			set(m.CheckString(2), nil)
		default:
			m.RaiseError("a value of the type %s is not simulated", value.Type())
		}
		return 0
	}))
	table := s.machine.NewTable()
	s.machine.SetMetatable(table, access)
	return table
}

// scope is what a function reaches of Kong: kong.ctx.plugin and kong.ctx.shared.
type scope struct {
	own       map[string]any
	shared    func(string) any
	setShared func(string, any)
}

// bodyFilter runs a function on a chunk of a response, or on its end, for which ngx.arg[1] is nil.
func (s *sandbox) bodyFilter(code string, in scope, chunk []byte, last bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	function := s.compiled[code]
	if function == nil {
		var err error
		if function, err = s.machine.LoadString(code); err != nil {
			return fmt.Errorf("load the function: %w", err)
		}
		s.compiled[code] = function
	}
	kong, ctx, ngx, arg := s.machine.NewTable(), s.machine.NewTable(), s.machine.NewTable(), s.machine.NewTable()
	ctx.RawSetString("plugin", s.table(
		func(key string) any { return in.own[key] }, func(key string, value any) { in.own[key] = value }))
	ctx.RawSetString("shared", s.table(in.shared, in.setShared))
	kong.RawSetString("ctx", ctx)
	if len(chunk) > 0 {
		arg.RawSetInt(1, lua.LString(chunk))
	}
	arg.RawSetInt(2, lua.LBool(last))
	ngx.RawSetString("arg", arg)
	s.env.RawSetString("kong", kong)
	s.env.RawSetString("ngx", ngx)
	function.Env = s.env
	s.machine.Push(function)
	return s.machine.PCall(0, 0, nil)
}

// postFunction returns the plugin of Kong's that runs functions. They get a response in parts of a number of bytes at
// most, however the upstream sends it; 0: as it comes.
func postFunction(t *testing.T, size int) gateway.Plugin {
	t.Helper()
	s := newSandbox()
	return gateway.Plugin{Info: kongPlugin(t, "post-function"), BodyFilter: func(
		c *gateway.PluginCall, chunk []byte, last bool,
	) {
		functions, _ := c.Config["body_filter"].([]any)
		for parts := 0; parts == 0 || len(chunk) > 0; parts++ {
			n := len(chunk)
			if size > 0 {
				n = min(n, size)
			}
			for _, function := range functions {
				err := s.bodyFilter(function.(string), scope{c.Own, c.Shared, c.SetShared}, chunk[:n], last)
				if err != nil {
					t.Error(err)
				}
			}
			chunk = chunk[n:]
		}
	}}
}
