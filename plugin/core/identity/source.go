package identity

import (
	"fmt"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/golang-jwt/jwt/v5"
)

// Source is a place that a name is read from. A config names one of the gateway: consumer.id, consumer.username,
// consumer.custom_id, consumer.tag.<key>, header.<Name> or jwt.<claim>. CallerTenant, CallerUser and CallerTier read
// what a caller states.
type Source struct {
	kind   sourceKind
	text   string // as the config names it; "": a caller states it
	detail string // the tag's key with its colon, the header, or the claim
	header int    // index among Rules.Headers
}

// IsHeader reports whether a source, as a config names it, is a header: a client may write it.
func IsHeader(source string) bool { return strings.HasPrefix(source, headerPrefix) }

const headerPrefix = "header."

// SharedPrefix begins the names of Rules.Headers that are values of kong.ctx.shared.
const SharedPrefix = "shared."

type sourceKind uint8

const (
	fromConsumerID sourceKind = iota
	fromUsername
	fromCustomID
	fromTag
	fromHeader
	fromClaim
	fromShared
	fromCallerTenant
	fromCallerUser
	fromCallerTier
	fromCallerModel
	fromCallerProvider
)

// fact returns the fact that must be known to read the source.
func (s Source) fact() Facts {
	switch s.kind {
	case fromHeader, fromShared:
		return HeaderFacts
	case fromClaim:
		return TokenFact
	case fromCallerTenant, fromCallerUser, fromCallerTier, fromCallerModel, fromCallerProvider:
		return CallerFacts
	default:
		return ConsumerFact
	}
}

// sourceNames holds the names of the sources in a config. A name that ends in a dot is followed by a detail.
var sourceNames = [...]string{
	fromConsumerID: "consumer.id", fromUsername: "consumer.username", fromCustomID: "consumer.custom_id",
	fromTag: "consumer.tag.", fromHeader: headerPrefix, fromClaim: "jwt.", fromShared: SharedPrefix,
}

// ParseSources compiles a list of sources. A header is added to headers unless it is there already.
func ParseSources(texts []string, headers *[]string) ([]Source, error) {
	sources := make([]Source, 0, len(texts))
	for _, text := range texts {
		kind := slices.IndexFunc(sourceNames[:], func(name string) bool {
			detail, ok := strings.CutPrefix(text, name)
			return ok && strings.HasSuffix(name, ".") == (detail != "")
		})
		if kind < 0 {
			return nil, fmt.Errorf("unknown source %q: use consumer.id, consumer.username, consumer.custom_id, "+
				"consumer.tag.<key>, header.<Name> or jwt.<claim>", text)
		}
		s := Source{kind: sourceKind(kind), text: text, detail: text[len(sourceNames[kind]):]}
		switch s.kind {
		case fromTag:
			s.detail += ":"
		case fromHeader:
			s.header = Header(s.detail, headers)
		case fromShared:
			s.header = indexIn(text, headers)
		default:
		}
		sources = append(sources, s)
	}
	return sources, nil
}

// Header returns the index of a header's name in headers, and adds the name if it is missing.
func Header(name string, headers *[]string) int {
	return indexIn(textproto.CanonicalMIMEHeaderKey(name), headers)
}

// indexIn returns the index of a name in a list, and adds the name if it is missing.
func indexIn(name string, headers *[]string) int {
	if i := slices.Index(*headers, name); i >= 0 {
		return i
	}
	*headers = append(*headers, name)
	return len(*headers) - 1
}

// Compile sets the facts that Identify needs of every request, from the rules and from what the limits need.
func (r *Rules) Compile(needed Facts) {
	r.Required = needed
	if r.CostHeader >= 0 || len(r.ReserveHeaders) > 0 {
		r.Required |= HeaderFacts
	}
	if r.CallerCost {
		r.Required |= CallerFacts
	}
	lists := [][]Source{r.Model, r.Provider}
	if r.NeedTenant {
		lists = append(lists, r.Tenant, r.Tier)
	}
	if r.SeekTenant {
		lists = append(lists, r.Tenant)
	}
	if r.NeedTenant && r.NeedUser || r.SeekUser {
		lists = append(lists, r.User)
	}
	for _, list := range lists {
		for _, source := range list {
			r.Required |= source.fact()
		}
	}
}

// reader reads sources of one request; it decodes the token at most once.
type reader struct {
	rules   *Rules
	request *Request
	claims  jwt.MapClaims
	decoded bool
}

// first returns the first name that any of the sources gives, and that source as the config names it; "" if none does.
// A fact that was not read counts as empty.
func (r *reader) first(sources []Source) (name, source string) {
	for i := range sources {
		if name := r.read(sources[i]); name != "" {
			return name, sources[i].text
		}
	}
	return "", ""
}

// name returns the first name that any of the sources gives, as a part of keys; Unidentified if none does.
func (r *reader) name(kind Kind, sources []Source) Name {
	if name, _ := r.first(sources); name != "" {
		return Name{Kind: kind, ID: part(name)}
	}
	return Name{}
}

// call returns the name of a model or provider, or "": a longer one than a pattern can have counts as unknown.
func (r *reader) call(sources []Source) string {
	if name, _ := r.first(sources); len(name) <= maxPart {
		return name
	}
	return ""
}

func (r *reader) read(s Source) string {
	switch s.kind {
	case fromConsumerID:
		return r.request.Consumer.ID
	case fromUsername:
		return r.request.Consumer.Username
	case fromCustomID:
		return r.request.Consumer.CustomID
	case fromTag:
		for _, tag := range r.request.Consumer.Tags {
			if value, ok := strings.CutPrefix(tag, s.detail); ok && value != "" {
				return value
			}
		}
		return ""
	case fromHeader, fromShared:
		if s.header < len(r.request.Headers) {
			return r.request.Headers[s.header]
		}
		return ""
	case fromCallerTenant:
		return r.request.Caller.Tenant
	case fromCallerUser:
		return r.request.Caller.User
	case fromCallerTier:
		return r.request.Caller.Tier
	case fromCallerModel:
		return r.request.Caller.Model
	case fromCallerProvider:
		return r.request.Caller.Provider
	default:
		return r.claim(s.detail)
	}
}

// claim reads a string or a whole number from the token. The gateway has verified the token; here it is only read.
func (r *reader) claim(name string) string {
	if !r.decoded {
		r.decoded = true
		r.claims = jwt.MapClaims{}
		parser := jwt.NewParser(jwt.WithJSONNumber())
		if _, _, err := parser.ParseUnverified(r.request.Token, r.claims); err != nil {
			r.claims = nil // not a token: its claims are missing, and the rules for missing names apply
		}
	}
	switch value := r.claims[name].(type) {
	case string:
		// Decoding replaces every invalid byte by the same character, so two such names could collide.
		if !strings.ContainsRune(value, utf8.RuneError) {
			return value
		}
	case interface{ Int64() (int64, error) }: // json.Number
		if n, err := value.Int64(); err == nil {
			return strconv.FormatInt(n, 10)
		}
	}
	return ""
}
