package pgstore_test

import (
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

func TestRedactedConnectionStringHasNoPassword(t *testing.T) {
	for dsn, want := range map[string]string{
		"":                                     "",
		"postgres://ann@db/rl":                 "postgres://ann@db/rl",
		"postgres://ann:s3cret@db:5432/rl?a=b": "postgres://ann:xxxxx@db:5432/rl?a=b",
		"postgres://db/rl?user=ann&password=s3cret":  "postgres://db/rl?password=xxxxx&user=ann",
		"postgresql://db/rl?sslpassword=s3cret":      "postgresql://db/rl?sslpassword=xxxxx",
		"postgres://ann:s3%zzcret@db/rl":             "(unreadable connection string)",
		"host=db user=ann password=s3cret dbname=rl": "host=db user=ann password=xxxxx dbname=rl",
		`password='s3 cre\'t' host=db`:               "password=xxxxx host=db",
		`host=db PASSWORD = s3\ cret user=ann`:       "host=db PASSWORD = xxxxx user=ann",
		"host=db sslpassword=s3cret":                 "host=db sslpassword=xxxxx",
		"password='s3cret":                           "password=xxxxx",
	} {
		if got := pgstore.Redact(dsn); got != want {
			t.Errorf("%s is shown as %s, want %s", dsn, got, want)
		}
		if strings.Contains(pgstore.Redact(dsn), "cret") {
			t.Errorf("the password of %s is shown", dsn)
		}
	}
}
