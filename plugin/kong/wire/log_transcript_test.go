package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire/kongtest"
)

// recordedPlugin does what a recorded plugin did, which its config lists.
type recordedPlugin struct {
	Pipelined bool
	Do        []string
	arguments map[string][]byte // by method=argument, as recorded
}

// run handles an event of either phase.
func (p *recordedPlugin) run(_ context.Context, e *Event) error {
	var unsent []string
	for _, step := range p.Do {
		name, argument, _ := strings.Cut(step, "=")
		switch name {
		case "sleep", "close-once":
			continue
		case "set_headers":
			e.SetHeaders(headersOf(argument))
			continue
		case "exit":
			for _, step := range unsent {
				e.Call(method(step), p.arguments[step])
			}
			parts := strings.Split(argument, "|")
			status, err := strconv.Atoi(parts[0])
			e.Exit(status, headersOf(parts[2]), []byte(parts[1]))
			return err
		}
		if unsent = append(unsent, step); p.Pipelined {
			continue
		}
		if err := p.ask(e, unsent); err != nil {
			return err
		}
		unsent = nil
	}
	return p.ask(e, unsent)
}

// ask sends the questions of the steps in one write. The argument of a question is a text, unless it was recorded as
// another message.
func (p *recordedPlugin) ask(e *Event, steps []string) error {
	var questions []Question
	for _, step := range steps {
		_, argument, _ := strings.Cut(step, "=")
		q := NewQuestion(method(step), argument)
		if recorded := appendFrame(appendFrame(nil, []byte(method(step))), p.arguments[step]); !bytes.Equal(q, recorded) {
			q = recorded
		}
		questions = append(questions, q)
	}
	return e.Ask(questions, func(int, []byte) error { return nil })
}

func method(step string) string {
	name, _, _ := strings.Cut(step, "=")
	return name
}

// headersOf parses "name=value;name=value".
func headersOf(list string) []Header {
	var headers []Header
	for _, pair := range strings.Split(list, ";") {
		if name, value, found := strings.Cut(pair, "="); found {
			headers = append(headers, Header{Name: name, Value: []byte(value)})
		}
	}
	return headers
}

// replay plays Kong's side of the recorded connections to the servers of one process.
type replay struct {
	t         *testing.T
	servers   map[string]*harness
	workers   map[int]*kongtest.Worker // by the number of the connection; nil: it has ended
	instances map[int32]int32          // the ids of the servers here, by the recorded ones
	compared  map[string]int           // frames of the plugin, by the first word of their label
}

func TestTheServerSendsWhatTheRecordedPluginsSentInBothPhases(t *testing.T) {
	lines := kongtest.LogTranscript(t)
	r := &replay{
		t: t, servers: map[string]*harness{}, workers: map[int]*kongtest.Worker{},
		instances: map[int32]int32{}, compared: map[string]int{},
	}
	arguments := map[string][]byte{}
	for _, line := range lines {
		if step, ok := strings.CutPrefix(line.Label, "args of "); ok {
			arguments[step] = line.Frame
		}
	}
	for _, name := range []string{"rec", "rec-log"} {
		r.servers[name] = serve(t, nil, func(o *Options) {
			o.Name = name
			o.Start = func(c Config) Instance {
				p := &recordedPlugin{arguments: arguments}
				assert.NoError(t, json.Unmarshal(c.JSON, p))
				if name == "rec" {
					return Instance{Access: p.run}
				}
				return Instance{Log: p.run}
			}
		})
	}
	for i, line := range lines {
		r.play(line, lines[i+1:])
	}
	for _, word := range []string{"method", "args", "end", "RpcReturn"} {
		assert.True(t, r.compared[word] >= 30, "the transcript has only %d frames %q to compare", r.compared[word], word)
	}
}

// play sends what Kong sent, or compares what the server sends with what the plugin sent. A connection ends where
// either side closed it: the server never closes one before its answer.
func (r *replay) play(line kongtest.Recorded, later []kongtest.Recorded) {
	r.t.Helper()
	k, opened := r.workers[line.Conn]
	if !opened {
		k = kongtest.Dial(r.t, r.servers[line.Server].path)
		r.workers[line.Conn] = k
	}
	switch {
	case k == nil:
	case line.EOF:
		_ = k.Conn.Close() // the server may have closed it, after an exit
		r.workers[line.Conn] = nil
	case line.Case == "log-asks exit": // the server drops an exit in the log phase
	case line.Label == "RpcCall":
		r.call(k, line, later)
	case line.Dir == "kong->plugin":
		k.Send(line.Frame)
	default:
		r.compare(k, line)
	}
}

// call sends a call for the server's own instance. The answer to a start gives its id.
func (r *replay) call(k *kongtest.Worker, line kongtest.Recorded, later []kongtest.Recorded) {
	r.t.Helper()
	var call pb.RpcCall
	require.NoError(r.t, proto.Unmarshal(line.Frame, &call))
	if event := call.GetCmdHandleEvent(); event != nil {
		event.InstanceId = r.instances[event.InstanceId]
		k.Send(kongtest.Encode(r.t, &call))
		return
	}
	for _, answer := range later {
		if answer.Conn == line.Conn && answer.Label == "RpcReturn" {
			var recorded pb.RpcReturn
			require.NoError(r.t, proto.Unmarshal(answer.Frame, &recorded))
			r.instances[recorded.GetInstanceStatus().GetInstanceId()] = seqOf(r.t, call.GetCmdStartInstance().Config)
			break
		}
	}
	k.Send(line.Frame)
}

// compare reads the server's next frame. Headers are texts here where go-pdk sends lists of one.
func (r *replay) compare(k *kongtest.Worker, line kongtest.Recorded) {
	r.t.Helper()
	got, err := k.Receive()
	require.NoError(r.t, err, "line %d", line.N)
	word, what, _ := strings.Cut(line.Label, " ")
	r.compared[word]++
	switch {
	case line.Case == "": // the return of a start
		var status pb.RpcReturn
		if err := proto.Unmarshal(got, &status); err != nil || status.GetInstanceStatus().GetName() != line.Server {
			r.t.Errorf("line %d: %v, %v", line.N, &status, err)
		}
	case what == "of set_headers", what == "of exit":
	case !bytes.Equal(got, line.Frame):
		r.t.Errorf("line %d, %s of %s:\n got %q\nwant %q", line.N, line.Label, line.Case, got, line.Frame)
	}
}
