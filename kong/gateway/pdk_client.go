package gateway

import (
	"strconv"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"google.golang.org/protobuf/proto"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway/internal/deck"
)

// clientMethods are kong.client, kong.router and kong.ip.
func clientMethods() map[string]pdkMethod {
	return map[string]pdkMethod{
		"kong.client.get_ip":             asks(func(x *exchange) []byte { return stringAnswer(x.peerIP) }),
		"kong.client.get_forwarded_ip":   asks(func(x *exchange) []byte { return stringAnswer(x.forwardedIP) }),
		"kong.client.get_port":           asks(func(x *exchange) []byte { return portAnswer(x.peerPort) }),
		"kong.client.get_forwarded_port": asks(func(x *exchange) []byte { return portAnswer(x.forwardedPort) }),
		"kong.client.get_credential": asks(func(x *exchange) []byte {
			return stringAnswer(x.credentialID) // its id is the first field, as in String
		}),
		"kong.client.get_consumer": func(x *exchange, _ []byte) ([]byte, error) { return consumerAnswer(x.consumer) },
		"kong.client.load_consumer": func(x *exchange, arg []byte) ([]byte, error) {
			var spec pb.ConsumerSpec
			if err := proto.Unmarshal(arg, &spec); err != nil {
				return nil, err
			}
			if !deck.IsUUID(spec.Id) && !spec.ByUsername {
				return nil, raise("cannot load a consumer with an id that is not a uuid")
			}
			return consumerAnswer(x.node.state().consumer(spec.Id, spec.ByUsername))
		},
		"kong.client.authenticate": authenticate,
		"kong.client.get_protocol": asks(func(x *exchange) []byte {
			if x.route != nil && len(x.route.Protocols) == 1 {
				return stringAnswer(x.route.Protocols[0])
			}
			if x.route == nil {
				return nil
			}
			return stringAnswer("http")
		}),
		"kong.router.get_route":   func(x *exchange, _ []byte) ([]byte, error) { return routeAnswer(x.route) },
		"kong.router.get_service": func(x *exchange, _ []byte) ([]byte, error) { return serviceAnswer(x.service) },
		"kong.ip.is_trusted": withString(func(x *exchange, ip string) ([]byte, error) {
			return boolAnswer(x.node.realIP.trusts(ip)), nil
		}),
	}
}

func portAnswer(port string) []byte {
	number, err := strconv.Atoi(port)
	if err != nil {
		return nil // tonumber gives nil
	}
	return intAnswer(number)
}

// authenticate makes a consumer known to the plugins that follow. A consumer
// that the configuration does not hold is taken as given, as in Kong.
func authenticate(x *exchange, arg []byte) ([]byte, error) {
	var args pb.AuthenticateArgs
	if err := proto.Unmarshal(arg, &args); err != nil {
		return nil, err
	}
	if args.Consumer == nil && args.Credential == nil {
		return nil, raise("either credential or consumer must be provided")
	}
	x.consumer, x.credentialID = nil, args.GetCredential().GetId()
	if c := args.Consumer; c != nil {
		x.consumer = &Consumer{
			ID: c.Id, Username: c.Username, CustomID: c.CustomId, Tags: c.Tags,
			CreatedAt: c.CreatedAt, UpdatedAt: c.CreatedAt,
		}
	}
	return nil, nil
}

func consumerAnswer(c *Consumer) ([]byte, error) {
	if c == nil {
		return nil, nil
	}
	return message(&pb.Consumer{
		Id: c.ID, CreatedAt: c.CreatedAt, Username: c.Username, CustomId: c.CustomID, Tags: c.Tags,
	})
}

func routeAnswer(r *Route) ([]byte, error) {
	if r == nil {
		return nil, nil
	}
	answer := &pb.Route{
		Id: r.ID, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, Name: r.Name, Protocols: r.Protocols,
		Methods: r.Methods, Hosts: r.Hosts, Paths: r.Paths, HttpsRedirectStatusCode: int32(r.RedirectStatus),
		RegexPriority: int32(r.RegexPriority), StripPath: r.StripPath, PreserveHost: r.PreserveHost, Tags: r.Tags,
	}
	if r.Service != nil {
		answer.Service = &pb.ServiceKey{Id: r.Service.ID}
	}
	return message(answer)
}

func serviceAnswer(s *Service) ([]byte, error) {
	if s == nil {
		return nil, nil
	}
	return message(&pb.Service{
		Id: s.ID, CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt, Name: s.Name, Retries: int32(s.Retries),
		Protocol: s.Protocol, Host: s.Host, Port: int32(s.Port), Path: s.Path, ConnectTimeout: int32(s.ConnectTimeout),
		WriteTimeout: int32(s.WriteTimeout), ReadTimeout: int32(s.ReadTimeout), Tags: s.Tags,
	})
}
