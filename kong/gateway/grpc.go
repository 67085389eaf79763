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

// grpcCodes are Kong's grpc-status for an HTTP status. Others count as 400 or
// 500 by their first digit.
var grpcCodes = map[int]int{
	200: 0, 400: 3, 401: 16, 403: 7, 404: 5, 409: 6, 429: 8, 499: 1, 500: 13, 501: 12, 503: 14, 504: 4,
}

// grpcTexts are Kong's grpc-message for a grpc-status that it chose.
var grpcTexts = [...]string{
	"OK", "Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound", "AlreadyExists", "PermissionDenied",
	"ResourceExhausted", "FailedPrecondition", "Aborted", "OutOfRange", "Unimplemented", "Internal", "Unavailable",
	"DataLoss", "Unauthenticated",
}

func grpcCode(status int) int {
	code, known := grpcCodes[status]
	switch {
	case known:
		return code
	case status >= 500:
		return grpcCodes[500]
	case status >= 400:
		return grpcCodes[400]
	case status >= 200 && status < 300:
		return grpcCodes[200]
	}
	return 2 // UNKNOWN
}

// isGRPC reports whether Kong takes the request for a gRPC call.
func (x *exchange) isGRPC() bool {
	return x.protocol == http2 && strings.HasPrefix(x.header.Get("Content-Type"), grpcType)
}

// completeGRPC adds to an answer what kong.response.exit adds for gRPC: a
// status where there is none, and a message for a status that it added. Without
// a content type the body becomes the message.
func (x *exchange) completeGRPC(call *exitCall) {
	contentType, typed := call.headers.get("Content-Type")
	if typed && !strings.HasPrefix(contentType, grpcType) || !typed && !x.isGRPC() {
		return
	}
	_, told := call.headers.get(grpcStatus)
	code := grpcCode(call.status)
	if !told {
		call.headers.set(grpcStatus, []string{strconv.Itoa(code)})
	}
	if !typed && call.body != nil {
		if call.headers.clear(grpcMessage); len(call.body) > 0 {
			call.headers.set(grpcMessage, []string{string(call.body)})
		}
		call.body = nil
		return
	}
	if _, worded := call.headers.get(grpcMessage); !told && !worded {
		call.headers.set(grpcMessage, []string{grpcTexts[code]})
	}
}

// failGRPC answers what Kong does not take for a gRPC call, on a route that is
// for those alone, or a call without TLS where the route wants it.
func (x *exchange) failGRPC() {
	switch {
	case !strings.HasPrefix(x.header.Get("Content-Type"), grpcType):
		x.fail(http.StatusUnsupportedMediaType, "Non-gRPC request matched gRPC route")
	case x.protocol != http2:
		x.fail(http.StatusUpgradeRequired, "Please use HTTP2 protocol")
		x.exit.headers.set("Connection", []string{"Upgrade"})
		x.exit.headers.set("Upgrade", []string{"HTTP/2"})
	case !x.route.Allows("grpc") && !x.forwardedTLS():
		x.exit = &exitCall{status: http.StatusOK}
		x.exit.headers.set("Content-Type", []string{grpcType})
		x.exit.headers.set(grpcStatus, []string{"1"})
		x.exit.headers.set(grpcMessage, []string{"gRPC request matched gRPCs route"})
	}
}

// forwardedTLS reports whether a trusted proxy says that the client used TLS.
func (x *exchange) forwardedTLS() bool {
	return x.trusted() && strings.EqualFold(x.header.Get("X-Forwarded-Proto"), "https")
}
