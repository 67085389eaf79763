package identity_test

import (
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
)

func TestOnlyGRPCsOwnContentTypesMakeACall(t *testing.T) {
	for contentType, want := range map[string]bool{
		"application/grpc":               true,
		"application/grpc+proto":         true,
		"application/grpc+json":          true,
		"application/grpc;charset=utf-8": true,
		"application/grpc-web":           false,
		"application/grpc-web+proto":     false,
		"application/grpc-web-text":      false,
		"application/grpcx":              false,
		"application/json":               false,
		"text/application/grpc":          false,
		"":                               false,
	} {
		request := identity.Request{
			Known:  identity.TargetFact | identity.RouteFact | identity.ContentTypeFact,
			Method: "POST", HTTP2: true, GRPCRoute: true, ContentType: contentType,
		}
		if call, missing := request.GRPC(); call != want || missing != 0 {
			t.Errorf("%q: call %v, missing %b; want %v", contentType, call, missing, want)
		}
	}
}
