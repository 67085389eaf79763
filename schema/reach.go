package schema

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// tagProblem returns why no consumer of Kong has a tag, or "". A space at an end is a fault and is not trimmed: the
// other tag could be that of other consumers.
func tagProblem(tag string) string {
	switch {
	case tag == "":
		return ""
	case strings.TrimSpace(tag) != tag:
		return fmt.Sprintf("must not begin or end with a space, got %q", docpath.Shorten(tag))
	case strings.ContainsAny(tag, ",/"), strings.ContainsFunc(tag, unicode.IsControl), !utf8.ValidString(tag):
		return fmt.Sprintf("must be a tag that Kong accepts, in UTF-8 and without commas, slashes and control "+
			"characters, got %q", docpath.Shorten(tag))
	}
	return ""
}

// noClients lists the networks whose addresses no client has.
var noClients = [...]struct {
	network netip.Prefix
	use     string
}{
	{netip.MustParsePrefix("0.0.0.0/32"), "no address"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("255.255.255.255/32"), "broadcast"},
	{netip.MustParsePrefix("::/128"), "no address"},
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
}

// networkProblem returns why no client has an address of a network, or "".
func networkProblem(network netip.Prefix) string {
	for _, none := range noClients {
		if none.network.Bits() <= network.Bits() && none.network.Contains(network.Addr()) {
			return fmt.Sprintf("contains no address of a client: %s is %s", none.network, none.use)
		}
	}
	return ""
}

// addressProblem returns why no client has an address, or one of a network, or "". It ignores texts that are neither.
// A zone is a fault and is not removed: it names an interface of one machine, and without it the address is another.
func addressProblem(text string) string {
	network, err := netip.ParsePrefix(text)
	if err != nil {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return ""
		}
		if bare := address.WithZone(""); bare != address {
			return fmt.Sprintf("must not have a zone, because addresses count without one: write %s in place of %s",
				bare.Unmap(), docpath.Shorten(text))
		}
		network = netip.PrefixFrom(address.Unmap(), address.Unmap().BitLen())
	}
	return networkProblem(network)
}

// methods lists the methods of requests that plugins can see: those of IANA's registry, and some that caches and media
// servers use. Kong answers CONNECT and TRACE before its plugins run.
var methods = strings.Fields(`GET HEAD POST PUT PATCH DELETE OPTIONS QUERY
	ACL BASELINE-CONTROL BIND CHECKIN CHECKOUT COPY LABEL LINK LOCK MERGE MKACTIVITY MKCALENDAR MKCOL MKREDIRECTREF
	MKWORKSPACE MOVE ORDERPATCH PROPFIND PROPPATCH REBIND REPORT SEARCH UNBIND UNCHECKOUT UNLINK UNLOCK UPDATE
	UPDATEREDIRECTREF VERSION-CONTROL
	BAN PURGE REFRESH NOTIFY SUBSCRIBE UNSUBSCRIBE M-SEARCH`)

// methodProblem returns why no request has the method of an endpoint pattern, or "". A text without a method is another
// fault.
func methodProblem(pattern string) string {
	method, _, found := strings.Cut(pattern, " ")
	switch {
	case !found, method == "*", slices.Contains(methods, method):
		return ""
	case method == "CONNECT", method == "TRACE":
		return fmt.Sprintf("must not have the method %s: Kong answers it before its plugins run", method)
	}
	return fmt.Sprintf("must have a method of HTTP, such as GET, or * for any, got %s%s", docpath.Shorten(method),
		hint(method, methods))
}
