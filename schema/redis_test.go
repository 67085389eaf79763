package schema_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestPrintingAConfigShowsNoSecret(t *testing.T) {
	c := schema.Config{Redis: schema.Redis{
		Host: "redis.internal", Username: "kong", Password: "hunter2", SentinelPassword: "swordfish",
	}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		for _, value := range []any{c, &c, c.Redis, &c.Redis, []schema.Redis{c.Redis}} {
			text := fmt.Sprintf(verb, value)
			if strings.Contains(text, "hunter2") || strings.Contains(text, "swordfish") {
				t.Errorf("%s of a %T shows a secret: %s", verb, value, text)
			}
			if !strings.Contains(text, "redis.internal") || strings.Count(text, "(set)") != 2 {
				t.Errorf("%s of a %T hides other values, or that secrets are set: %s", verb, value, text)
			}
		}
	}
}

func TestPrintingAConfigShowsWhenNoPasswordIsSet(t *testing.T) {
	if text := fmt.Sprintf("%+v", schema.Redis{}); strings.Contains(text, "(set)") {
		t.Errorf("a password is shown as set: %s", text)
	}
}
