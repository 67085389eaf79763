package pgstore

import (
	"net/url"
	"regexp"
	"strings"
)

// hidden stands for a password.
const hidden = "xxxxx"

// secret finds the passwords of a connection string of keywords: password, sslpassword. A value may be quoted, and a
// backslash escapes.
var secret = regexp.MustCompile(`(?i)(\b\w*password\s*=\s*)('(?:\\.|[^'\\])*'?|(?:\\.|[^\s\\])+)`)

// Redact is a connection string that can be shown: without passwords. One that cannot be read is not shown at all.
func Redact(dsn string) string {
	if !strings.Contains(dsn, "://") {
		return secret.ReplaceAllString(dsn, "${1}"+hidden)
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return "(unreadable connection string)"
	}
	if _, given := u.User.Password(); given {
		u.User = url.UserPassword(u.User.Username(), hidden)
	}
	query := u.Query()
	for name := range query {
		if strings.HasSuffix(strings.ToLower(name), "password") {
			query.Set(name, hidden)
		}
	}
	u.RawQuery = query.Encode()
	return u.String()
}
