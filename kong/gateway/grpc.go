package gateway

import (
	"net/http"
	"strconv"
	"strings"
)

const (
	grpcType    = "application/grpc"
	http2       = "HTTP/2.0"
	grpcStatus  = "grpc-status"
	grpcMessage = "grpc-message"
)

// grpcCodes holds Kong's grpc-status for an HTTP status. Any other status counts as 400 or 500 by its first digit.
var grpcCodes = map[int]int{
	200: 0, 400: 3, 401: 16, 403: 7, 404: 5, 409: 6, 429: 8, 499: 1, 500: 13, 501: 12, 503: 14, 504: 4,
}

// grpcTexts holds Kong's grpc-message for a grpc-status that it chose.
var grpcTexts = [...]string{
	"OK", "Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound", "AlreadyExists", "PermissionDenied",
	"ResourceExhausted", "FailedPrecondition", "Aborted", "OutOfRange", "Unimplemented", "Internal", "Unavailable",
	"DataLoss", "Unauthenticated",
}

func grpcCode(status int) int {
	const unknown = 2
	if code, listed := grpcCodes[status]; listed {
		return code
	}
	if code, listed := grpcCodes[status/100*100]; listed {
		return code
	}
	return unknown
}

// isGRPC reports whether Kong takes the request for a gRPC call.
func (x *exchange) isGRPC() bool {
	return x.protocol == http2 && strings.HasPrefix(x.header.Get("Content-Type"), grpcType)
}

// completeGRPC adds to an answer what kong.response.exit adds for gRPC: a status where the answer has none, and a
// message for a status that Kong added. Without a content type the body becomes the message.
func (x *exchange) completeGRPC(answer *Exit) {
	contentType, typed := getHeader(answer.Header, "Content-Type")
	if typed && !strings.HasPrefix(contentType, grpcType) || !typed && !x.isGRPC() {
		return
	}
	_, hasStatus := getHeader(answer.Header, grpcStatus)
	code := grpcCode(answer.Status)
	if !hasStatus {
		setHeader(answer.Header, grpcStatus, strconv.Itoa(code))
	}
	if !typed && answer.Body != nil {
		if delete(answer.Header, spelling(answer.Header, grpcMessage)); len(answer.Body) > 0 {
			setHeader(answer.Header, grpcMessage, string(answer.Body))
		}
		answer.Body = nil
		return
	}
	if _, hasMessage := getHeader(answer.Header, grpcMessage); !hasStatus && !hasMessage {
		setHeader(answer.Header, grpcMessage, grpcTexts[code])
	}
}

// denyOtherProtocols answers a request on a gRPC route that Kong does not take for a gRPC call, and a call without TLS
// on a route for grpcs alone.
func (x *exchange) denyOtherProtocols() {
	switch {
	case !strings.HasPrefix(x.header.Get("Content-Type"), grpcType):
		x.fail(http.StatusUnsupportedMediaType, "Non-gRPC request matched gRPC route")
	case x.protocol != http2:
		x.fail(http.StatusUpgradeRequired, "Please use HTTP2 protocol", "Connection", "Upgrade", "Upgrade", "HTTP/2")
	case !x.route.Allows("grpc"):
		x.respond(http.StatusOK, nil,
			"Content-Type", grpcType, grpcStatus, "1", grpcMessage, "gRPC request matched gRPCs route")
	}
}
