package gateway

import (
	"fmt"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"google.golang.org/protobuf/proto"
)

// Kong's defaults for settings of routes and services that the decK reader does not take.
const (
	httpsRedirectStatus = 426
	serviceTimeout      = 60_000 // ms: to connect and to write
)

func encodeConsumer(c *Consumer) ([]byte, error) {
	if c == nil {
		return nil, nil
	}
	return encodeMessage(&pb.Consumer{
		Id: c.ID, CreatedAt: c.CreatedAt, Username: c.Username, CustomId: c.CustomID, Tags: c.Tags,
	})
}

func encodeRoute(r *Route) ([]byte, error) {
	if r == nil {
		return nil, nil
	}
	answer := &pb.Route{
		Id: r.ID, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, Name: r.Name, Protocols: r.Protocols,
		Methods: r.Methods, Hosts: r.Hosts, Paths: r.Paths, HttpsRedirectStatusCode: httpsRedirectStatus,
		StripPath: r.StripPath, Tags: r.Tags,
	}
	if r.Service != nil {
		answer.Service = &pb.ServiceKey{Id: r.Service.ID}
	}
	return encodeMessage(answer)
}

func encodeService(s *Service) ([]byte, error) {
	if s == nil {
		return nil, nil
	}
	return encodeMessage(&pb.Service{
		Id: s.ID, CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt, Name: s.Name, Retries: int32(s.Retries),
		Protocol: s.Protocol, Host: s.Host, Port: int32(s.Port), Path: s.Path, ConnectTimeout: serviceTimeout,
		WriteTimeout: serviceTimeout, ReadTimeout: int32(s.ReadTimeout), Tags: s.Tags,
	})
}

// encodeMessage encodes an answer whose strings come from the decK file.
func encodeMessage(m proto.Message) ([]byte, error) {
	encoded, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	return encoded, nil
}

// consumerTable returns the consumer as the Lua table that Kong keeps of it.
func consumerTable(c *Consumer) map[string]any {
	table := map[string]any{"id": c.ID, "created_at": float64(c.CreatedAt), "updated_at": float64(c.UpdatedAt)}
	if c.Username != "" {
		table["username"] = c.Username
	}
	if c.CustomID != "" {
		table["custom_id"] = c.CustomID
	}
	if len(c.Tags) > 0 {
		table["tags"] = luaList(c.Tags)
	}
	return table
}
