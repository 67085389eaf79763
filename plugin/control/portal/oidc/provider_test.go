package oidc

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAConfigurationThatIsNotSafeOrNoneIsNotUsed(t *testing.T) {
	t.Parallel()
	const unsafe, away = "not set up correctly", "not available at the moment"
	for name, c := range map[string]struct {
		config   map[string]any
		discover http.HandlerFunc // nil: it answers with the configuration
		want     string
	}{
		"other issuer":        {map[string]any{"issuer": "https://evil.example"}, nil, unsafe},
		"plain form":          {map[string]any{"authorization_endpoint": "http://login.example.org/auth"}, nil, unsafe},
		"plain token":         {map[string]any{"token_endpoint": "http://login.example.org/token"}, nil, unsafe},
		"plain keys":          {map[string]any{"jwks_uri": "http://login.example.org/keys"}, nil, unsafe},
		"no token":            {map[string]any{"token_endpoint": ""}, nil, unsafe},
		"script for the form": {map[string]any{"authorization_endpoint": "javascript:alert(1)"}, nil, unsafe},
		"not found":           {nil, http.NotFound, away},
		"redirect":            {nil, http.RedirectHandler("https://evil.example", http.StatusFound).ServeHTTP, away},
		"text":                {nil, func(w http.ResponseWriter, _ *http.Request) { answer(w, "hello") }, away},
		"endless": {nil, func(w http.ResponseWriter, _ *http.Request) {
			answer(w, map[string]string{"issuer": strings.Repeat("x", 2*maxAnswer)})
		}, away},
	} {
		f, s := newForger(t), newSite(t)
		if f.config = c.config; c.discover != nil {
			f.discover = c.discover
		}
		s.use(t, Settings{Issuer: f.URL})
		t.Log(name)
		get(t, newBrowser(t), s.URL+StartPath, http.StatusServiceUnavailable, c.want)
	}
}

func TestASignInBeginsOnlyWhileTheProviderIsAvailableAndEndsWithWhatIsKnownOfIt(t *testing.T) {
	t.Parallel()
	f, s := newForger(t), newSite(t)
	fetches, isAway, discover := 0, false, f.discover
	f.discover = func(w http.ResponseWriter, r *http.Request) {
		if fetches++; isAway {
			http.Error(w, "away", http.StatusBadGateway)
			return
		}
		discover(w, r)
	}
	s.use(t, Settings{Issuer: f.URL})
	b := newBrowser(t)
	back, nonce := f.begin(t, s, b)
	f.begin(t, s, newBrowser(t))
	if fetches != 1 {
		t.Errorf("two sign-ins at once: %d fetches, want 1", fetches)
	}
	isAway = true
	s.ahead.Store(int64(keepAvailable))
	get(t, newBrowser(t), s.URL+StartPath, http.StatusServiceUnavailable, "not available at the moment")
	if fetches != 2 {
		t.Errorf("after %v: %d fetches, want 2", keepAvailable, fetches)
	}
	f.token = f.sign(t, f.claims(nonce, s.now(), nil), "1")
	get(t, b, back, http.StatusOK, "oidc:ann@example.org is admin")
	isAway = false
	f.begin(t, s, newBrowser(t))
}

func TestAClaimGivesTheHighestRoleOfAnOperatorOrOneTenant(t *testing.T) {
	for name, c := range map[string]struct{ claim, role, org, fault string }{
		"admin before viewer": {claim: "ratelimit:viewer ratelimit:admin", role: "admin"},
		"viewer":              {claim: "x ratelimit:viewer", role: "viewer"},
		"operator and tenant": {claim: "ratelimit:tenant:acme ratelimit:tenant:b ratelimit:viewer", role: "viewer"},
		"tenant":              {claim: "ratelimit:tenant:acme", role: "tenant", org: "acme"},
		"tenant twice":        {claim: "ratelimit:tenant:acme ratelimit:tenant:acme", role: "tenant", org: "acme"},
		"tenant with colons":  {claim: "ratelimit:tenant:a:b", role: "tenant", org: "a:b"},
		"any tenant":          {claim: "ratelimit:tenant:*", role: "tenant", org: "*"}, // as every name, only itself
		"two tenants":         {claim: "ratelimit:tenant:acme ratelimit:tenant:b", fault: "several tenants"},
		"no name of a tenant": {claim: "ratelimit:tenant: ratelimit:tenant", fault: "it has none of"},
		"control character":   {claim: "ratelimit:tenant:a\x00b", fault: "it has none of"},
		"other spelling":      {claim: "Ratelimit:admin admin ratelimit:Admin ratelimit:admin:x", fault: "it has none of"},
		"none":                {claim: "", fault: "it has none of ratelimit:admin, ratelimit:viewer and ratelimit"},
	} {
		who, err := roleOf(strings.Split(c.claim, " "))
		if string(who.Role) != c.role || who.Org != c.org || (err != nil) != (c.fault != "") {
			t.Errorf("%s: %+v %v", name, who, err)
		} else if err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAClaimIsFoundByItsNameOrAPath(t *testing.T) {
	claims := map[string]any{
		"roles": "a", "https://example.org/roles": []any{"b", 7}, "list": []any{},
		"resource_access": map[string]any{"my.client": map[string]any{"roles": []any{"c", "d"}}}, "number": 7.0,
	}
	for path, want := range map[string]string{
		"roles": "a", "https://example.org/roles": "b", "resource_access.my.client.roles": "c d", "list": "", "number": "",
		"resource_access": "", "resource_access.my": "", "roles.x": "", "": "", ".": "", "missing.roles": "",
	} {
		if got := strings.Join(valuesOf(claims, path), " "); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

func TestAPersonIsNamedAsTheAuditCanKeepIt(t *testing.T) {
	for want, claims := range map[string]map[string]any{
		"ann@example.org":        {"email": "ann@example.org", "preferred_username": "a", "sub": "1"},
		"ann":                    {"email": "a@example.org", "email_verified": false, "preferred_username": "ann"},
		"Jörg Müller":            {"email": "j@a.org", "email_verified": "false", "preferred_username": "Jörg Müller"},
		"1":                      {"email": 7, "preferred_username": "a\u200bb", "sub": "1"},
		"2":                      {"email": " a@example.org", "preferred_username": "a\nb", "sub": "2"},
		"3":                      {"email": "a\u3164", "preferred_username": "a\ufe0f", "sub": "3"},
		strings.Repeat("a", 250): {"email": strings.Repeat("b", 251), "sub": strings.Repeat("a", 250)},
		"":                       {"sub": strings.Repeat("a", 251), "email": "a\xff"},
	} {
		if got := nameOf(claims); got != want {
			t.Errorf("%v: %q, want %q", claims, got, want)
		}
	}
}

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
