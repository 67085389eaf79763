package grpclimit_test

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limiter"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limiter/grpclimit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func ExampleUnary() {
	l, err := limiter.New(limiter.Options{Config: schema.Config{Tiers: []schema.Tier{{
		Name:   "essentials",
		Limits: []schema.Limit{{Name: "burst", Scope: schema.ScopeTenant, Limit: 1, WindowSize: 3600}},
	}}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close(context.Background())

	identify := func(context.Context, string) limiter.Request {
		return limiter.Request{Org: "acme"} // of a verified token or certificate in the context
	}
	server := grpc.NewServer(
		grpc.UnaryInterceptor(grpclimit.Unary(l, identify)),
		grpc.StreamInterceptor(grpclimit.Stream(l, identify)),
	)
	healthpb.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	go server.Serve(listener)
	defer server.Stop()

	connection, err := grpc.NewClient(listener.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer connection.Close()
	for range 2 {
		_, err := healthpb.NewHealthClient(connection).Check(context.Background(), &healthpb.HealthCheckRequest{})
		fmt.Printf("%v %q\n", status.Code(err), status.Convert(err).Message())
	}
	// Output:
	// OK ""
	// ResourceExhausted "API rate limit exceeded"
}
