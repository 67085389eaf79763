// Package oidctest starts a real OpenID provider for a test, npm's oidc-provider in its own Node process on a free port
// of the loopback.
//
// A test without the provider fails and is never skipped. Node comes from Debian if it is missing, and the packages of
// provider/package-lock.json from npm: see package npmtest.
package oidctest

import (
	"embed"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
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
