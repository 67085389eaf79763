package oidctest

import (
	"bufio"
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/debian"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/npmtest"
)

//go:embed provider
var files embed.FS

// attempts bounds the starts of a provider: another process may take its port first.
const attempts = 5

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
	config  Config
	node    string // its path
	dir     string // with the program
	process *exec.Cmd
	stdin   io.Closer
	output  *bytes.Buffer
}

// Start starts a provider and waits until it listens. It runs until the end of the test.
func Start(t testing.TB, c Config) *Provider {
	t.Helper()
	p := &Provider{t: t, config: c, node: npmtest.Node(t), dir: prepare(t)}
	t.Cleanup(p.Stop)
	var err error
	for range attempts {
		p.Issuer = "http://" + freeport.Address(t)
		if err = p.run(); err == nil {
			return p
		}
	}
	t.Fatalf("start oidc-provider: %v", err)
	return nil
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
	if err := p.run(); err != nil {
		p.t.Fatalf("start oidc-provider again: %v", err)
	}
}

// Stop ends the provider, if it runs.
func (p *Provider) Stop() {
	if p.process == nil {
		return
	}
	_ = p.process.Process.Kill() // it fails only if the process has ended
	_ = p.stdin.Close()
	_ = p.process.Wait() // a signal ended it
	p.process = nil
}

// run starts a process and waits until it listens.
func (p *Provider) run() error {
	config, err := json.Marshal(struct {
		Config
		Issuer string `json:"issuer"`
	}{p.config, p.Issuer})
	if err != nil {
		return err
	}
	p.output = &bytes.Buffer{}
	cmd := exec.Command(p.node, "provider/provider.mjs")
	cmd.Dir, cmd.Stderr = p.dir, p.output
	cmd.Env = append(os.Environ(), "PROVIDER="+string(config))
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.process = cmd
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if lines.Text() == "listening" {
			return nil
		}
	}
	p.Stop()
	return fmt.Errorf("the process ended at once: %s", debian.LastLine(p.output.Bytes()))
}
