// Package oidctest starts a real OpenID provider for a test, npm's oidc-provider in its own Node process on a free port
// of the loopback, and signs in by its forms as a browser would.
//
// A test without the provider fails and is never skipped. Node comes from Debian if it is missing, and the packages of
// provider/package-lock.json from npm: see package npmtest.
package oidctest

import (
	"embed"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/daemon"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/npmtest"
)

//go:embed provider
var files embed.FS

// Config configures a provider with one client.
type Config struct {
	ClientID    string                    `json:"clientId"`
	Secret      string                    `json:"secret"` // "": a public client
	RedirectURL string                    `json:"redirectURL"`
	Accounts    map[string]map[string]any `json:"accounts"` // claims by the name to sign in with, which is the sub

	ClaimsInIDToken bool `json:"claimsInIDToken"` // else only userinfo has them, as the standard says
}

// Provider is one provider. It can be stopped and started again, with other keys.
type Provider struct {
	Issuer string

	t       testing.TB
	address string // host:port
	config  Config
	node    string // its path
	dir     string // with the program
	process *daemon.Process
}

// Start starts a provider and waits until it listens. It runs until the end of the test.
func Start(t testing.TB, c Config) *Provider {
	t.Helper()
	address := freeport.Address(t)
	p := &Provider{
		Issuer: "http://" + address, t: t, address: address, config: c, node: npmtest.Node(t), dir: prepare(t),
	}
	t.Cleanup(p.Stop)
	require.NoError(t, p.run(), "start oidc-provider")
	return p
}

// prepare returns a folder with the program and its packages.
func prepare(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, files))
	packages := filepath.Join(npmtest.Modules(t, filepath.Join(dir, "provider")), "node_modules")
	require.NoError(t, os.Symlink(packages, filepath.Join(dir, "node_modules")))
	return dir
}

// Restart starts the provider again at the same address, with other keys and without its sessions.
func (p *Provider) Restart() {
	p.t.Helper()
	p.Stop()
	require.NoError(p.t, p.run(), "start oidc-provider again")
}

// Stop ends the provider, if it runs.
func (p *Provider) Stop() { _ = p.process.End(syscall.SIGKILL) }

// run starts a process and waits until it listens.
func (p *Provider) run() error {
	config, err := json.Marshal(struct {
		Config
		Issuer string `json:"issuer"`
	}{p.config, p.Issuer})
	if err != nil {
		return err
	}
	cmd := exec.Command(p.node, "provider/provider.mjs")
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), "PROVIDER="+string(config))
	if _, err := cmd.StdinPipe(); err != nil { // the provider ends when the pipe does
		return err
	}
	p.process, err = daemon.Start(cmd, daemon.Listens(p.address))
	return err
}

// Parts of the provider's forms.
var (
	formAction = regexp.MustCompile(`<form[^>]* action="([^"]+)"`)
	formPrompt = regexp.MustCompile(`name="prompt" value="(\w+)"`)
	cancelLink = regexp.MustCompile(`<a href="([^"]+/abort)"`)
)

// maxForms bounds the forms of one sign-in: one with the name, and one to agree.
const maxForms = 3

// SignIn opens a page that leads to the provider, fills in its forms with an account, and returns the first response
// that is not one of its forms. The client must have a cookie jar. Callers close the body.
func (p *Provider) SignIn(client *http.Client, page, account string) (*http.Response, error) {
	return p.answer(client, page, func(form string) (*http.Response, error) {
		prompt, action := formPrompt.FindStringSubmatch(form), formAction.FindStringSubmatch(form)
		if prompt == nil || action == nil {
			return nil, fmt.Errorf("the provider shows no form: %s", form)
		}
		values := url.Values{"prompt": {prompt[1]}, "login": {account}, "password": {"any"}}
		return client.PostForm(html.UnescapeString(action[1]), values)
	})
}

// Cancel opens a page that leads to the provider, cancels there, and returns the response of the page after it.
func (p *Provider) Cancel(client *http.Client, page string) (*http.Response, error) {
	return p.answer(client, page, func(form string) (*http.Response, error) {
		link := cancelLink.FindStringSubmatch(form)
		if link == nil {
			return nil, fmt.Errorf("the provider shows no link to cancel: %s", form)
		}
		return client.Get(html.UnescapeString(link[1]))
	})
}

// answer opens a page, and answers the forms of the provider until a response is not one of them.
func (p *Provider) answer(
	client *http.Client, page string, fill func(form string) (*http.Response, error),
) (*http.Response, error) {
	response, err := client.Get(page)
	for range maxForms {
		if err != nil || response.StatusCode != http.StatusOK || !p.isAt(response.Request.URL) {
			return response, err
		}
		form, readErr := io.ReadAll(response.Body)
		_ = response.Body.Close() // it was read
		if readErr != nil {
			return nil, readErr
		}
		response, err = fill(string(form))
	}
	return response, err
}

// isAt reports whether a URL is the provider's.
func (p *Provider) isAt(u *url.URL) bool { return strings.HasPrefix(u.String(), p.Issuer+"/") }
