// Package grpctest serves gRPC's health service and calls it, for tests of gateways between the two.
package grpctest

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// patience bounds a call.
const patience = 30 * time.Second

// Methods of the health service: Check is a unary call, Watch a stream.
const (
	Check = "Check"
	Watch = "Watch"
)

// ServeHealth serves the health service on the loopback until the end of the test, and returns its port.
func ServeHealth(t testing.TB, options ...grpc.ServerOption) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer(options...)
	healthpb.RegisterHealthServer(server, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().(*net.TCPAddr).Port
}

// Result is the outcome of a call as its client reads it. Metadata joins the header and the trailer.
type Result struct {
	Code             codes.Code
	Message          string
	Header, Metadata metadata.MD
}

// Call calls a method of the health service at an http URL, without TLS.
func Call(t testing.TB, url, method string, options ...grpc.CallOption) Result {
	t.Helper()
	credentials := grpc.WithTransportCredentials(insecure.NewCredentials())
	conn, err := grpc.NewClient(strings.TrimPrefix(url, "http://"), credentials)
	require.NoError(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	client, request := healthpb.NewHealthClient(conn), &healthpb.HealthCheckRequest{}
	var header, trailer metadata.MD
	if method == Check {
		_, err = client.Check(ctx, request, append(options, grpc.Header(&header), grpc.Trailer(&trailer))...)
		return result(err, header, trailer)
	}
	stream, err := client.Watch(ctx, request, options...)
	require.NoError(t, err)
	_, err = stream.Recv()
	header, headerErr := stream.Header()
	if err == nil && headerErr != nil {
		t.Fatal(headerErr)
	}
	return result(err, header, stream.Trailer())
}

func result(err error, header, trailer metadata.MD) Result {
	s := status.Convert(err)
	return Result{s.Code(), s.Message(), header, metadata.Join(header, trailer)}
}

// Post posts an empty message to the health service over HTTP/2 without TLS, and returns the response with its body.
func Post(t testing.TB, url, host, contentType string) (*http.Response, string) {
	t.Helper()
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	emptyMessage := bytes.NewReader(make([]byte, 5))
	request, err := http.NewRequest(http.MethodPost, url+"/grpc.health.v1.Health/Check", emptyMessage)
	require.NoError(t, err)
	request.Host = host
	request.Header.Set("Content-Type", contentType)
	response, err := transport.RoundTrip(request)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response, string(body)
}
