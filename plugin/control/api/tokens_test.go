package api_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const orgTokens = "/v1/orgs/acme/tokens"

// issued is a token with its secret.
type issued struct {
	rows.OrgToken
	Secret string
}

// stored is an Authenticator of the tokens in a database.
type stored struct{ *rows.DB }

func (s stored) Authenticate(ctx context.Context, secret string) (api.Caller, error) {
	if c, err := (ring{}).Authenticate(ctx, secret); err == nil {
		return c, nil
	}
	all, err := s.Secrets(ctx)
	if err != nil {
		return api.Caller{}, err
	}
	t, err := all.Token(secret)
	if err != nil {
		return api.Caller{}, api.ErrUnknownToken
	}
	return api.Caller{Token: t.Name, Role: api.Role(t.Role), Org: t.Org}, nil
}

// served makes a server with the rights of the role server, and the tokens of its database.
func served(t *testing.T) *world {
	t.Helper()
	s := pgtest.Granted(t)
	pool := pgtest.Pool(t, s.RoleDSN(pgtest.ServerRole))
	store := rows.New(pool)
	w := open(t, func(o *api.Options) { o.Rows, o.Tokens = store, stored{store} })
	w.store, w.pool = store, pgtest.Pool(t, s.RoleDSN(pgtest.Owner))
	return w
}

// by does something with a token.
func (w *world) by(token, method, path, body string, headers ...string) answer {
	return w.do(call{token, method, path, body, headers})
}

func TestAnOrgManagesItsTokens(t *testing.T) {
	t.Parallel()
	w := served(t)
	a := w.want(w.by(ofAcme, "POST", orgTokens, `{"name":"ci","expires_in":"90d"}`), http.StatusCreated)
	first := read[issued](w, a)
	if first.Name != "ci" || first.Role != "tenant:acme" || first.State != "live" || !rows.IsSecret(first.Secret) ||
		a.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("the token is %+v, with the headers %v", first.OrgToken, a.Header())
	}
	second := read[issued](w, w.want(w.by(first.Secret, "POST", orgTokens, `{"name":"cd"}`), http.StatusCreated))
	rotated := read[issued](w, w.want(w.by(second.Secret, "POST", orgTokens+"/cd/rotate", `{}`), http.StatusOK))
	if rotated.Secret == second.Secret || rotated.OldSecretUntil.IsZero() {
		t.Errorf("the rotated token is %+v", rotated.OrgToken)
	}
	for _, secret := range []string{second.Secret, rotated.Secret} {
		w.want(w.by(secret, "GET", orgTokens, ""), http.StatusOK)
		w.want(w.by(secret, "GET", "/v1/orgs/globex/tokens", ""), http.StatusForbidden)
		w.want(w.by(secret, "GET", policies, ""), http.StatusForbidden)
	}
	w.want(w.by(rotated.Secret, "POST", orgTokens+"/cd/rotate", `{"overlap":"0s"}`), http.StatusOK)
	for _, secret := range []string{second.Secret, rotated.Secret} {
		w.want(w.by(secret, "GET", orgTokens, ""), http.StatusUnauthorized)
	}
	w.want(w.by(first.Secret, "DELETE", orgTokens+"/cd", ""), http.StatusNoContent)
	w.want(w.by(first.Secret, "DELETE", orgTokens+"/cd", ""), http.StatusNotFound)
	list := read[answers.OrgTokens](w, w.want(w.by(first.Secret, "GET", orgTokens, ""), http.StatusOK)).Tokens
	if len(list) != 2 || list[0].Name != "ci" || list[1].Name != "cd" || list[1].State != "revoked" {
		t.Errorf("the tokens are %+v, want the live one and the revoked one", list)
	}
	audit := w.want(w.as("GET", "/v1/ratelimit/audit?tenant=acme&kind=token", ""), http.StatusOK).Body.String()
	for _, part := range []string{`"actor":"token:acme-portal"`, `"actor":"token:acme/ci"`, `"key":"acme/cd"`} {
		if !strings.Contains(audit, part) {
			t.Errorf("the audit has no %s: %s", part, audit)
		}
	}
}

func TestTheSecretOfATokenIsShownOnceAndStoredNowhere(t *testing.T) {
	t.Parallel()
	w := served(t)
	made := func() answer {
		return w.want(w.by(ofAcme, "POST", orgTokens, `{"name":"ci"}`, "Idempotency-Key", "k"), http.StatusCreated)
	}
	first := read[issued](w, made())
	again := made()
	if second := read[issued](w, again); second.Secret != "" || second.Name != "ci" ||
		again.Header().Get("Idempotent-Replayed") != "true" {
		t.Errorf("a retry is answered with %s", again.Body)
	}
	for _, table := range []string{"tokens", "audit", "answers"} {
		var stored int
		err := w.pool.QueryRow(t.Context(), `SELECT count(*) FROM rate_limiter.`+table+` x
			WHERE position($1 IN x::text) > 0`, first.Secret[3:]).Scan(&stored)
		if err != nil || stored != 0 {
			t.Errorf("%d rows of %s have the secret (%v)", stored, table, err)
		}
	}
	if strings.Contains(w.log.String(), first.Secret) {
		t.Error("the log has the secret")
	}
}

func TestAnOrgNeitherTakesNorProbesNamesOfOthers(t *testing.T) {
	t.Parallel()
	w := served(t)
	owner := rows.New(w.pool)
	for _, n := range []rows.NewToken{
		{Name: "ci", Role: rows.RoleAdmin}, {Name: "portal", Role: rows.RoleTenant, Org: "acme"},
	} {
		if _, _, err := owner.CreateToken(t.Context(), rows.Change{Actor: "ann", Reason: "a test"}, n); err != nil {
			t.Fatal(err)
		}
	}
	for _, org := range []string{
		"acme", "ACME", "Acme", "globex", "a/b", "a", "a%2fb", "ümlaut", " ", "..", "acme/ci", "token:acme", "\u202eevil",
		"a\tb", "%", "~", `'; DROP TABLE x; --`, strings.Repeat("ü", 64), strings.Repeat("x", 128),
	} {
		for _, name := range []string{"ci", "portal", "CD", "b.c"} {
			_, _, err := w.store.CreateOrgToken(t.Context(), rows.Change{Actor: "token:" + name, Reason: "a test"}, org, name,
				rows.MaxOrgTokenLife)
			if err != nil {
				t.Errorf("%q makes %s: %v", org, name, err)
			}
		}
		list, err := w.store.OrgTokens(t.Context(), org)
		if err != nil || len(list) != 4 {
			t.Errorf("%q has %+v (%v), want its four tokens", org, list, err)
		}
		for _, token := range list { // its name is the actor of what it does, for each org
			secret, _, err := w.store.RotateOrgToken(t.Context(), rows.Change{Actor: "ann", Reason: "r"}, org, token.Name, 0)
			if err != nil {
				t.Errorf("%q rotates %s: %v", org, token.Name, err)
				continue
			}
			all, err := w.store.Secrets(t.Context())
			require.NoError(t, err)
			found, err := all.Token(secret)
			if err != nil || found.Org != org {
				t.Errorf("the secret of %q is that of %q (%v)", org, found.Org, err)
			}
			err = w.store.RevokeOrgToken(t.Context(), rows.Change{Actor: "token:" + found.Name, Reason: "r"}, org, token.Name)
			if err != nil {
				t.Errorf("%s revokes itself: %v", found.Name, err)
			}
		}
	}
	list, err := owner.Tokens(t.Context(), rows.TokenFilter{State: rows.TokenLive})
	if err != nil || len(list) != 2 {
		t.Errorf("%d live tokens remain (%v), want those of operators", len(list), err)
	}
}

func TestAnOrgDoesNotSeeOrRevokeTokensOfOperators(t *testing.T) {
	t.Parallel()
	w := served(t)
	secret, _, err := rows.New(w.pool).CreateToken(t.Context(), rows.Change{Actor: "ann", Reason: "a test"},
		rows.NewToken{Name: "acme-ops", Role: rows.RoleTenant, Org: "acme"})
	require.NoError(t, err)
	w.want(w.by(secret, "DELETE", orgTokens+"/acme-ops", ""), http.StatusNotFound)
	w.want(w.by(secret, "POST", orgTokens+"/acme-ops/rotate", `{}`), http.StatusNotFound)
	w.want(w.by(secret, "DELETE", orgTokens+"/"+"..%2facme-ops", ""), http.StatusUnprocessableEntity)
	if a := w.want(w.by(secret, "GET", orgTokens, ""), http.StatusOK); strings.Contains(a.Body.String(), "acme-ops") {
		t.Errorf("the org sees %s", a.Body)
	}
}

func TestAnOrgHasAtMostTwentyLiveTokensAlsoWhereItMakesManyAtOnce(t *testing.T) {
	t.Parallel()
	w := served(t)
	var all sync.WaitGroup
	codes := make([]int, rows.MaxOrgTokens+15)
	for i := range codes {
		all.Go(func() { codes[i] = w.by(ofAcme, "POST", orgTokens, fmt.Sprintf(`{"name":"t%d"}`, i)).Code })
	}
	all.Wait()
	by := map[int]int{}
	for _, code := range codes {
		by[code]++
	}
	if by[http.StatusCreated] != rows.MaxOrgTokens || by[http.StatusConflict] != 15 {
		t.Errorf("the answers are %v, want %d tokens and 15 conflicts", by, rows.MaxOrgTokens)
	}
	w.want(w.by(ofGlobex, "POST", "/v1/orgs/globex/tokens", `{"name":"t1"}`), http.StatusCreated)
}

func TestAnOrgMakesABoundedNumberOfTokensADay(t *testing.T) {
	t.Parallel()
	w := served(t)
	var made int
	for ; made < 200; made++ {
		a := w.by(ofAcme, "POST", orgTokens, fmt.Sprintf(`{"name":"t%d"}`, made))
		if a.Code == http.StatusConflict {
			break
		}
		w.want(a, http.StatusCreated)
		w.want(w.by(ofAcme, "DELETE", orgTokens+fmt.Sprintf("/t%d", made), ""), http.StatusNoContent)
	}
	if made != 100 {
		t.Errorf("%d tokens were made, want 100: their rows stay", made)
	}
}

func TestFaultsOfATokenAreReportedAtTheirFields(t *testing.T) {
	t.Parallel()
	w := open(t)
	for body, at := range map[string]string{
		`{}`:             "body",
		`{"name":""}`:    "body.name",
		`{"name":"a/b"}`: "body.name",
		`{"name":"a b"}`: "body.name",
		`{"name":"` + strings.Repeat("x", 65) + `"}`: "body.name",
		`{"name":"ci","expires_in":"0s"}`:            "body.expires_in",
		`{"name":"ci","expires_in":"366d"}`:          "body.expires_in",
		`{"name":"ci","expires_in":"soon"}`:          "body.expires_in",
		`{"name":"ci","role":"admin"}`:               "body.role",
		`{"name":"ci","org":"globex"}`:               "body.org",
	} {
		a := w.want(w.by(ofAcme, "POST", orgTokens, body), http.StatusUnprocessableEntity)
		if got := read[problem](w, a).paths(); !strings.HasPrefix(got, at) {
			t.Errorf("%s: faults at %s, want %s", body, got, at)
		}
	}
	for _, overlap := range []string{"-1s", "8d", "x"} {
		w.wantFaults(w.by(ofAcme, "POST", orgTokens+"/ci/rotate", `{"overlap":"`+overlap+`"}`), "body.overlap")
	}
}
