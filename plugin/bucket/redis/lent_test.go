package redis

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

func TestAWireThatIsDeniedItsDatabaseNamesTheCause(t *testing.T) {
	server := redistest.Single(t)
	must(t, server.Client(t), "acl", "setuser", "u", "on", ">secret", "~*", "+@all", "-select")
	client := redis.NewClient(&redis.Options{
		Addr: server.Address(), Username: "u", Password: "secret", DB: 1, Protocol: 2, MaxRetries: -1, DisableIdentity: true,
	})
	t.Cleanup(func() { _ = client.Close() })
	p := newPipeline(client)
	defer func() {
		p.close()
		p.serving.Wait()
	}()
	_, err := runIn(t, p, "k")
	if kindErr := wantKind(err, Rejected); kindErr != nil {
		t.Fatal(kindErr)
	}
	if text := err.Error(); !strings.Contains(text, "NOPERM") || !strings.Contains(text, "select") {
		t.Errorf("error is %q, want that it names NOPERM and select", text)
	}
}
