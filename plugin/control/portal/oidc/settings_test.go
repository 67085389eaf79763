package oidc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestASettingThatIsWrongIsNamedByItsFlag(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, []byte("\n"), 0o600))
	valid := Settings{
		Issuer: "https://login.example.org/realms/a", ClientID: "a", RedirectURL: "https://limits.example.org" + CallbackPath,
		RolesClaim: DefaultRolesClaim, Scopes: DefaultScopes,
	}
	for name, c := range map[string]struct {
		change func(*Settings)
		fault  string
	}{
		"valid": {func(*Settings) {}, ""},
		"off":   {func(s *Settings) { *s = Settings{} }, ""},
		"on this machine": {func(s *Settings) {
			s.Issuer, s.RedirectURL = "http://127.0.0.1:1", "http://localhost:1"+CallbackPath
		}, ""},
		"no issuer":         {func(s *Settings) { s.Issuer = "" }, "--portal-oidc-issuer is missing"},
		"plain issuer":      {func(s *Settings) { s.Issuer = "http://a.org" }, `-issuer: "http://a.org": must be https`},
		"no URL":            {func(s *Settings) { s.Issuer = "login.example.org" }, `-issuer: "login.example.org": must be`},
		"issuer with query": {func(s *Settings) { s.Issuer += "?a=b" }, `/realms/a?a=b": must have no query`},
		"no client":         {func(s *Settings) { s.ClientID = "" }, "--portal-oidc-client-id is missing"},
		"no redirect":       {func(s *Settings) { s.RedirectURL = "" }, "--portal-oidc-redirect-url is missing"},
		"plain redirect": {func(s *Settings) {
			s.RedirectURL = "http://limits.example.org" + CallbackPath
		}, `--portal-oidc-redirect-url: "http://limits.example.org/portal/oidc/callback": must be https`},
		"other path": {func(s *Settings) { s.RedirectURL += "/" }, "the path must be /portal/oidc/callback"},
		"no claim":   {func(s *Settings) { s.RolesClaim = " " }, "--portal-oidc-roles-claim must name a claim"},
		"no openid":  {func(s *Settings) { s.Scopes = "email" }, `-scopes: "email": must include openid`},
		"no file":    {func(s *Settings) { s.SecretFile = empty + "2" }, "--portal-oidc-client-secret-file: open "},
		"empty file": {func(s *Settings) { s.SecretFile = empty }, "-client-secret-file: " + empty + " is empty"},
	} {
		s := valid
		c.change(&s)
		err := s.Validate()
		if (err != nil) != (c.fault != "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s: %v, want %q", name, err, c.fault)
		}
	}
}
