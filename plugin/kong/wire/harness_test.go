package wire

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/logtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire/kongtest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const getConsumer = "kong.client.get_consumer"

// alice is the username of the consumer in the recorded case key-auth.
const alice = "alice"

// greet asks for the consumer and sets a header with its name.
func greet(_ context.Context, e *Event) error {
	name, err := consumerName(e)
	if err != nil {
		return err
	}
	e.SetHeaders([]Header{{Name: "X-Consumer", Value: []byte(name)}})
	return nil
}

// pass lets a request pass.
func pass(context.Context, *Event) error { return nil }

// deny asks for the consumer and ends the request.
func deny(_ context.Context, e *Event) error {
	name, err := consumerName(e)
	e.Exit(429, []Header{{Name: "X-Consumer", Value: []byte(name)}}, []byte("no"))
	return err
}

func consumerName(e *Event) (string, error) {
	var consumer Consumer
	err := e.Ask([]Question{NewQuestion(getConsumer, "")}, func(_ int, answer []byte) error {
		return DecodeConsumer(answer, nil, &consumer)
	})
	return consumer.Username, err
}

type accessFunc func(context.Context, *Event) error

// harness is a server under test, its socket and its log.
type harness struct {
	*Server
	t    testing.TB
	path string
	log  *logtest.Text
	stop func() error
}

// plainListener makes connections that the server does not recognize as unix sockets.
type plainListener struct{ net.Listener }

func (l plainListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return struct{ net.Conn }{c}, err
}

// serve serves instances that handle events with access.
func serve(t testing.TB, access accessFunc, change func(*Options)) *harness {
	t.Helper()
	return serveOn(t, access, change, func(l net.Listener) net.Listener { return l })
}

// serveOn serves the connections of the listener that wrap returns.
func serveOn(t testing.TB, access accessFunc, change func(*Options), wrap func(net.Listener) net.Listener) *harness {
	t.Helper()
	h := &harness{t: t, path: filepath.Join(t.TempDir(), "s"), log: new(logtest.Text)}
	options := Options{
		Name:   "plugin",
		Log:    slog.New(slog.NewJSONHandler(h.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Start:  func(Config) Instance { return Instance{Access: access} },
		Budget: 20 * time.Second, // as tests wait for a frame
	}
	if change != nil {
		change(&options)
	}
	h.Server = New(options)
	listener, err := net.Listen("unix", h.path)
	require.NoError(t, err)
	h.stop = kongtest.Serve(t, wrap(listener), h.Serve)
	return h
}

// writes returns how many writes to sockets the server has done.
func (h *harness) writes() uint64 { return h.Counters().Writes }

// answered sends events until one is answered within its budget, and returns how many were not, on a busy machine.
func (h *harness) answered(k *kongtest.Worker, id int32) (late int) {
	h.t.Helper()
	await.That(h.t, "an answer within the budget", func() bool {
		require.NoError(h.t, k.Event(id))
		if k.Headers == nil {
			late++
		}
		return k.Headers != nil
	})
	return late
}

// dial connects a worker of Kong with the recorded answers of case key-auth.
func (h *harness) dial() *kongtest.Worker {
	h.t.Helper()
	k := kongtest.Dial(h.t, h.path)
	k.Answers = kongtest.AnswersOf(h.t, "key-auth")
	return k
}
