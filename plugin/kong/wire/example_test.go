package wire_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire/kongtest"
)

var consumer = []wire.Question{wire.NewQuestion("kong.client.get_consumer", "")}

// greet adds a header with the name of the request's consumer.
func greet(_ context.Context, e *wire.Event) error {
	var c wire.Consumer
	err := e.Ask(consumer, func(_ int, answer []byte) error { return wire.DecodeConsumer(answer, nil, &c) })
	if err != nil {
		return err // logged; the request passes without the header
	}
	e.SetHeaders([]wire.Header{{Name: "X-Hello", Value: []byte(c.Username)}})
	return nil
}

// A plugin that adds a header with the consumer's name. Kong connects to the socket; here a worker of package kongtest
// does.
func Example() {
	dir, err := os.MkdirTemp("", "wire")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "hello.socket") // Kong's prefix, and the name of the executable
	listener, err := net.Listen("unix", socket)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	server := wire.New(wire.Options{
		Name:  "hello",
		Start: func(wire.Config) wire.Instance { return wire.Instance{Access: greet} },
	})
	go func() { served <- server.Serve(ctx, listener) }()

	kong := kongtest.Dial(kongtest.Panics{}, socket)
	defer kong.Conn.Close()
	kong.Answers = kongtest.AnswersOf(kongtest.Panics{}, "key-auth") // as a running Kong has answered
	fmt.Println(kong.Event(kong.StartInstance(1, `{}`)), kong.Headers)

	stop()
	fmt.Println(<-served)
	// Output:
	// <nil> map[X-Hello:alice]
	// <nil>
}

// A log phase reads what the upstream has answered. Its plugin is a second server of the process, with a socket of its
// own; here a worker of package kongtest calls the instance.
func Example_log() {
	status := []wire.Question{wire.NewQuestion("kong.response.get_status", "")}
	server := wire.New(wire.Options{
		Name: "hello-log",
		Start: func(wire.Config) wire.Instance {
			return wire.Instance{Log: func(_ context.Context, e *wire.Event) error {
				return e.Ask(status, func(_ int, answer []byte) error {
					code, err := wire.DecodeInt(answer)
					fmt.Println("the client got", code)
					return err
				})
			}}
		},
	})
	dir, err := os.MkdirTemp("", "wire")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "hello-log.socket")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- server.Serve(ctx, listener) }()

	kong := kongtest.Dial(kongtest.Panics{}, socket)
	defer kong.Conn.Close()
	kong.Answers = kongtest.AnswersOf(kongtest.Panics{}, "log-exit-429")
	fmt.Println(kong.LogEvent(kong.StartInstance(1, `{}`)))

	stop()
	fmt.Println(<-served)
	// Output:
	// the client got 429
	// <nil>
	// <nil>
}
