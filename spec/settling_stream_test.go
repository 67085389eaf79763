package spec

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
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

// streamSnippet returns the decK file of docs/llm-budgets.md that counts streams itself.
func streamSnippet(t *testing.T) string {
	t.Helper()
	for _, s := range snippets(t, "docs/llm-budgets.md") {
		if strings.Contains(s.text, "name: post-function") {
			return s.deck(t)
		}
	}
	t.Fatal("docs/llm-budgets.md has no decK file with the plugin post-function")
	return ""
}

// usage returns the object that OpenAI sends.
func usage(prompt, completion int) string {
	return fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,
		"prompt_tokens_details":{"cached_tokens":7,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":9}}`,
		prompt, completion, prompt+completion)
}

// event returns one event of a stream, with a piece of the answer.
func event(content, usage string) string {
	text, err := json.Marshal(content)
	if err != nil {
		panic(err) // every string has a JSON
	}
	if usage != "" {
		usage = `,"usage":` + strings.ReplaceAll(usage, "\n\t\t", "")
	}
	return fmt.Sprintf(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-4o",`+
		`"choices":[{"index":0,"delta":{"content":%s},"logprobs":null,"finish_reason":null}]%s}`+"\n\n", text, usage)
}

const (
	done     = "data: [DONE]\n\n"
	reserved = 20_000 // µUSD, by the limit of the page
)

// claim is a text about a model and a usage, in an answer.
const claim = `so "model":"gpt-4o-mini","usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}, "usage": {`

// long is an answer that is longer than what the function keeps.
var long = strings.Repeat("word ", 1000)

// streams are answers of an upstream, and what they cost in µUSD: 2.5 for a token of the question, 10 for one of the
// answer.
var streams = map[string]struct {
	body    string
	charged int
}{
	"usage in the last event": {event("Hel", "null") + event("lo", "null") + event("", usage(14, 20)) + done, 235},
	"no usage":                {event("Hello", "") + done, reserved},
	"usage is null":           {event("Hello", "null") + done, reserved},
	"usage in each event, which grows": {
		event("a", usage(14, 1)) + event("b", usage(14, 2)) + event("c", usage(14, 3)) + done, 65,
	},
	"a text about usage, and usage":    {event(claim, "null") + event("", usage(14, 20)) + done, 235},
	"usage, and a text about usage":    {event("", usage(14, 20)) + event(claim, "null") + done, 235},
	"a text about usage alone":         {event(claim, "null") + done, reserved},
	"a long answer":                    {event(long, "null") + event("", usage(900, 1200)) + done, 14_250},
	"a long answer after an old usage": {event("", usage(1, 1)) + event(long, usage(14, 20)) + done, 235},
	"numbers after details": {event("", `{"completion_tokens_details":{"reasoning_tokens":9},`+
		`"prompt_tokens_details":{"cached_tokens":7},"total_tokens":34,"completion_tokens":20,"prompt_tokens":14}`) +
		done, 235},
	"one object, written with spaces": {
		"{\n  \"model\" : \"gpt-4o\",\n  \"usage\" : " + usage(14, 20) + ",\n  \"choices\": []\n}", 235,
	},
	"one object with a long answer after usage": {
		`{"model":"gpt-4o","usage":` + usage(14, 20) + `,"choices":[{"text":"` + long + `"}]}`, 235,
	},
	"a model without a price":     {strings.ReplaceAll(event("", usage(14, 20)), "gpt-4o", "o9") + done, reserved},
	"an answer that used nothing": {event("", usage(0, 0)) + done, 0},
	"numbers that are texts":      {event("", `{"prompt_tokens":"14","completion_tokens":"20"}`) + done, reserved},
	"numbers below zero":          {event("", `{"prompt_tokens":-14,"completion_tokens":-20}`) + done, reserved},
	"one number of two":           {event("", `{"prompt_tokens":14}`) + done, reserved},
	"an object that does not end": {`data: {"usage":{"prompt_tokens":14,"completion_tokens":20`, reserved},
	"a number of a thousand digits": {
		event("", `{"prompt_tokens":14,"completion_tokens":`+strings.Repeat("9", 1000)+`}`) + done, reserved,
	},
	"numbers of another object after usage": {
		"data: {\"usage\":{}}\n\n" + `data: {"cost":{"prompt_tokens":9,"completion_tokens":9}}` + done, reserved,
	},
	"no JSON":                 {strings.Repeat("\x00\xff{}\"", 500), reserved},
	"nothing":                 {"", reserved},
	"a compressed last event": {compressed(event("", usage(14, 20)) + done), reserved},
}

func compressed(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, text); err != nil {
		panic(err) // a buffer takes everything
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.String()
}

func TestAStreamIsChargedTheUsageAtItsEndHoweverItIsCut(t *testing.T) {
	t.Parallel()
	deck := strings.NewReplacer("window_size: 86400", "window_size: 31536000",
		"- name: chat\n", "- name: chat\n  routes: [{name: chat, paths: [/chat]}]\n",
	).Replace(streamSnippet(t)) + "\nplugins: [{name: key-auth}]" + consumers
	for _, size := range []int{0, 3, 64} {
		t.Run(fmt.Sprintf("in parts of %d bytes", size), func(t *testing.T) {
			t.Parallel()
			answers := func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, streams[r.URL.Query().Get("stream")].body) // the gateway reads it all
			}
			upstream := chattingAt("llm.internal", answers)
			b := budget{node: start(t, deck, settling, upstream, within(postFunction(t, size)))}
			left := 10_000_000
			for name, stream := range streams {
				if size == 3 && len(stream.body) > len(long) {
					continue // thousands of parts would show no more than those of 64 bytes do
				}
				b.get("/chat?" + "stream=" + strings.ReplaceAll(name, " ", "+"))
				a := b.get("/chat?stream=an+answer+that+used+nothing")
				now, err := strconv.Atoi(a.Header.Get("X-RateLimit-Remaining"))
				if err != nil {
					t.Fatalf("%d %v %s", a.Status, a.Header, a.Body)
				}
				if charged := left - (now + reserved); charged != stream.charged {
					t.Errorf("%s: %d µUSD were charged, want %d", name, charged, stream.charged)
				}
				left = now + reserved
			}
		})
	}
}

// within is an option of start: Kong has these plugins too.
func within(plugins ...gateway.Plugin) func(*gateway.Options) {
	return func(o *gateway.Options) { o.Plugins = append(o.Plugins, plugins...) }
}

// lateInAccess returns a plugin of Kong's without settings. It runs in the access phase after the plugin under test.
func lateInAccess(t *testing.T, name string, access func(*gateway.PluginCall)) gateway.Plugin {
	t.Helper()
	info, err := gateway.ParsePluginInfo(fmt.Appendf(nil, `{"Protocol":"ProtoBuf:1","Plugins":[{"Name":%q,
		"Phases":["access"],"Priority":770,"Schema":{"name":%[1]q,"fields":[{"config":{"type":"record","fields":[]}}]}}]}`,
		name))
	require.NoError(t, err)
	return gateway.Plugin{Info: info, Access: access}
}

// requestTermination returns the plugin of Kong's that answers in place of the upstream.
func requestTermination(t *testing.T) gateway.Plugin {
	t.Helper()
	return gateway.Plugin{Info: kongPlugin(t, "request-termination"), Access: func(c *gateway.PluginCall) {
		status, _ := c.Config["status_code"].(float64)
		c.Exit(int(status), []byte(`{"message":"terminated"}`))
	}}
}
