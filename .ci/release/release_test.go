package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdxlib"
)

// The tests look at what make release-check has built for this machine's architecture: see the Makefile.
const (
	top  = "../.."
	work = top + "/.cache/release"
	dist = work + "/dist"

	installed = "usr/local/lib/tenant-rate-limiting/tenant-rate-limiting"
	settings  = "etc/default/tenant-rate-limiting"
	state     = "var/lib/tenant-rate-limiting"
)

// machine is a folder with a dpkg of its own, and a systemctl that notes its arguments and reloads the supervisor.
type machine struct {
	t    *testing.T
	root string
}

func newMachine(t *testing.T) machine {
	m := machine{t, t.TempDir()}
	for _, folder := range []string{"var/lib/dpkg/info", "var/lib/dpkg/updates", "run/systemd/system", "bin"} {
		m.must(os.MkdirAll(m.path(folder), 0o755))
	}
	m.write("var/lib/dpkg/status", "")
	m.write("var/lib/dpkg/available", "")
	m.write("bin/systemctl", `#!/bin/sh
echo "$*" >>"$DPKG_ROOT/systemctl.log"
case "$1" in
is-active) [ -f "$DPKG_ROOT/supervisor" ] ;;
reload) kill -HUP "$(cat "$DPKG_ROOT/supervisor")" ;;
esac
`)
	m.must(os.Chmod(m.path("bin/systemctl"), 0o755))
	return m
}

func (m machine) path(name string) string { return filepath.Join(m.root, name) }

func (m machine) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m machine) write(name, text string) {
	m.t.Helper()
	m.must(os.WriteFile(m.path(name), []byte(text), 0o644))
}

func (m machine) read(name string) string {
	m.t.Helper()
	text, err := os.ReadFile(m.path(name))
	m.must(err)
	return string(text)
}

func (m machine) has(name string) bool {
	_, err := os.Lstat(m.path(name))
	return err == nil
}

func (m machine) dpkg(args ...string) string {
	m.t.Helper()
	here := []string{"--root=" + m.root, "--force-script-chrootless", "--log=" + m.path("dpkg.log")}
	command := exec.Command("dpkg", append(here, args...)...)
	command.Env = append(os.Environ(), "PATH="+m.path("bin")+":"+os.Getenv("PATH")+":/usr/sbin:/sbin")
	out, err := command.CombinedOutput()
	if err != nil {
		m.t.Fatalf("dpkg %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// built returns the path of the only file of the release with such a name.
func built(t *testing.T, pattern string) string {
	t.Helper()
	found, _ := filepath.Glob(filepath.Join(dist, pattern))
	if len(found) != 1 {
		t.Fatalf("%d files %s in %s: make release-check builds them", len(found), pattern, dist)
	}
	path, _ := filepath.Abs(found[0])
	return path
}

// older returns the package of the plugin with a version before the release's.
func older(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	command := exec.Command(".cache/bin/nfpm", "package", "--packager=deb", "--target="+folder,
		"--config=.ci/release/tenant-rate-limiting.yaml")
	command.Dir = top
	command.Env = append(os.Environ(), "VERSION=0.0.9", "ARCH="+runtime.GOARCH)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("nfpm: %v\n%s", err, out)
	}
	return filepath.Join(folder, "tenant-rate-limiting_0.0.9_"+runtime.GOARCH+".deb")
}

// gateway starts a gateway with the installed plugin, and returns its address and the plugin's supervisor.
func (m machine) gateway() (url string, supervisor int) {
	m.t.Helper()
	command := exec.Command(top+"/bin/demo-gateway", "-config", top+"/kong/kong.yml", "-listen", "127.0.0.1:0",
		"-plugin", m.path(installed)+" -metrics-listen off -time-budget 60s")
	out, err := command.StdoutPipe()
	m.must(err)
	command.Stderr = command.Stdout
	m.must(command.Start())
	m.t.Cleanup(func() {
		m.must(command.Process.Signal(syscall.SIGTERM))
		_ = command.Wait()
	})
	started := regexp.MustCompile(`gateway (\S+)   plugin pid (\d+)\n`)
	text, buffer := "", make([]byte, 4096)
	for started.FindString(text) == "" {
		n, err := out.Read(buffer)
		if text += string(buffer[:n]); err != nil {
			m.t.Fatalf("the gateway ended: %s", text)
		}
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	line := started.FindStringSubmatch(text)
	supervisor, err = strconv.Atoi(line[2])
	m.must(err)
	return line[1], supervisor
}

// awaitWorker waits until the only child of the supervisor runs the file on the disk. The children of a Go program are
// those of the threads that started them.
func (m machine) awaitWorker(supervisor int) {
	m.t.Helper()
	workers := ""
	for range 600 {
		workers = ""
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", supervisor))
		for _, thread := range threads {
			children, _ := os.ReadFile(thread)
			for _, worker := range strings.Fields(string(children)) {
				exe, _ := os.Readlink("/proc/" + worker + "/exe")
				workers += exe
			}
		}
		if workers == m.path(installed) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	m.t.Fatalf("the workers run %q", workers)
}

func TestPackageOfThePluginUnderLoad(t *testing.T) {
	m, release, before := newMachine(t), built(t, "tenant-rate-limiting_*.deb"), older(t)
	m.dpkg("--install", before)
	for line := range strings.Lines(m.read("usr/share/doc/tenant-rate-limiting/examples/kong.conf")) {
		_, command, found := strings.Cut(line, "query_cmd = /")
		if found && !m.has(strings.Fields(command)[0]) {
			t.Errorf("kong.conf names a file that is not installed: %s", line)
		}
	}
	url, supervisor := m.gateway()
	m.write("supervisor", strconv.Itoa(supervisor))
	m.write(settings, "TENANT_RATE_LIMITING_LOG_LEVEL=warn\n")
	m.must(os.MkdirAll(m.path(state), 0o700))

	var requests, failed atomic.Int64
	ending, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-ending:
				return
			default:
			}
			if requests.Add(1); !decided(url) {
				failed.Add(1)
			}
			time.Sleep(time.Millisecond)
		}
	}()
	m.dpkg("--install", release)
	m.awaitWorker(supervisor)
	out := m.dpkg("--install", before)
	if !strings.Contains(out, "downgrading") {
		t.Errorf("dpkg does not tell of the downgrade: %s", out)
	}
	m.awaitWorker(supervisor)
	close(ending)
	<-ended
	t.Logf("%d requests over an upgrade and a downgrade, %d failed", requests.Load(), failed.Load())
	if requests.Load() < 10 || failed.Load() > 0 {
		t.Errorf("%d of %d requests failed", failed.Load(), requests.Load())
	}
	if got := m.read(settings); !strings.Contains(got, "=warn") {
		t.Errorf("the upgrade replaced the settings: %s", got)
	}

	m.dpkg("--remove", "tenant-rate-limiting")
	if m.has(installed) || !m.has(settings) || !m.has(state) {
		t.Error("want the programs removed, and settings and state kept")
	}
	if log := m.read("systemctl.log"); !strings.Contains(log, "disable --now tenant-rate-limiting.service") {
		t.Errorf("the removed service still runs: %s", log)
	}
	m.dpkg("--purge", "tenant-rate-limiting")
	if m.has(settings) || m.has(state) {
		t.Error("settings or state remain")
	}
}

// decided reports whether the plugin admits or denies a request.
func decided(url string) bool {
	response, err := http.Get(url + "/records?apikey=acme-key")
	if err != nil {
		return false
	}
	_, _ = io.Copy(io.Discard, response.Body)
	ok := response.StatusCode == http.StatusOK || response.StatusCode == http.StatusTooManyRequests
	return response.Body.Close() == nil && ok && response.Header.Get("RateLimit-Policy") != ""
}

func TestPackagesWhereSystemdDoesNotAnswer(t *testing.T) {
	m := newMachine(t)
	for _, command := range []string{"bin/systemctl", "bin/getent"} {
		m.write(command, "#!/bin/sh\nexit 1\n")
		m.must(os.Chmod(m.path(command), 0o755))
	}
	m.must(os.MkdirAll(m.path("usr/local/bin"), 0o755))
	m.write("usr/local/bin/tenant-rate-limiting", "")
	for _, name := range []string{"tenant-rate-limiting", "ratelimit"} {
		release := built(t, name+"_*.deb")
		out := m.dpkg("--install", release)
		for _, hint := range []string{"there is no user kong", "remove /usr/local/bin/tenant-rate-limiting"} {
			if strings.Contains(out, hint) != (name == "tenant-rate-limiting") {
				t.Errorf("%s: %s", name, out)
			}
		}
		m.dpkg("--install", release)
		m.dpkg("--remove", name)
		m.dpkg("--install", release)
		m.dpkg("--purge", name)
	}
}

func TestPackageOfTheOperatorsProgram(t *testing.T) {
	m := newMachine(t)
	m.dpkg("--install", built(t, "ratelimit_*.deb"))
	if out, err := exec.Command(m.path("usr/bin/ratelimit"), "version").CombinedOutput(); !stamped(string(out)) {
		t.Errorf("ratelimit version: %s (%v)", out, err)
	}
	for _, name := range []string{"usr/share/man/man1/ratelimit-serve.1.gz", "usr/lib/systemd/system/ratelimit.service"} {
		if !m.has(name) {
			t.Errorf("%s is not installed", name)
		}
	}
	completion := m.path("usr/share/bash-completion/completions/ratelimit")
	if out, err := exec.Command("bash", "-n", completion).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	m.dpkg("--purge", "ratelimit")
	if m.has("usr/bin/ratelimit") || m.has("etc/default/ratelimit") {
		t.Error("files remain")
	}
}

// stamped reports whether a version names its commit and date.
func stamped(version string) bool {
	return regexp.MustCompile(`^\d+\.\d+\.\d+ \(commit [0-9a-f]{40}(\+dirty)?, \d{4}-\d\d-\d\dT`).MatchString(version)
}

func TestImageRunsByItself(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root may change the root folder")
	}
	index, err := layout.ImageIndexFromPath(work + "/image/layout")
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	images, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	architectures, err := index.ImageIndex(images.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := architectures.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range manifest.Manifests {
		if m.Platform.Architecture != runtime.GOARCH {
			continue
		}
		image, err := architectures.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		root := t.TempDir()
		unpack(t, mutate.Extract(image), root)
		run := func(command ...string) string {
			c := exec.Cmd{Path: command[0], Args: command, Dir: "/", Env: config.Config.Env, SysProcAttr: &syscall.SysProcAttr{
				Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532},
			}}
			out, err := c.CombinedOutput()
			if err != nil {
				t.Errorf("%q: %v\n%s", command, err, out)
			}
			return string(out)
		}
		if config.Config.User != "65532:65532" || !stamped(run(append(config.Config.Entrypoint, "version")...)) {
			t.Errorf("the image has the config %+v", config.Config)
		}
		shared := filepath.Join(root, "shared")
		if err := errors.Join(os.Mkdir(shared, 0o755), os.Chown(shared, 65532, 65532)); err != nil {
			t.Fatal(err)
		}
		run("/usr/local/bin/cp", "/usr/local/bin/tenant-rate-limiting", "/shared/")
		if got := run("/shared/tenant-rate-limiting", "-version"); !stamped(got) {
			t.Errorf("the copied plugin's version is %q", got)
		}
		certificates, _ := os.ReadFile(filepath.Join(root, "etc/ssl/certs/ca-certificates.crt"))
		if n := strings.Count(string(certificates), "BEGIN CERTIFICATE"); n < 50 {
			t.Errorf("%d certificates of authorities", n)
		}
		return
	}
	t.Errorf("no image for %s", runtime.GOARCH)
}

func unpack(t *testing.T, files io.ReadCloser, root string) {
	t.Helper()
	defer files.Close()
	// Another user runs the files in it.
	defer syscall.Umask(syscall.Umask(0o022))
	for folder := root; folder != "/" && folder != os.TempDir(); folder = filepath.Dir(folder) {
		if err := os.Chmod(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for r := tar.NewReader(files); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(root, header.Name)
		if header.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o755)
		} else {
			var content []byte
			content, err = io.ReadAll(r)
			err = errors.Join(err, os.WriteFile(path, content, fs.FileMode(header.Mode)))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestBillOfMaterialsIsWhole(t *testing.T) {
	file, err := os.Open(built(t, "*.spdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	d, err := spdxjson.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := spdxlib.ValidateDocument(d); err != nil {
		t.Error(err)
	}
	for _, p := range d.Packages {
		if p.PackageLicenseConcluded == unknown || p.PackageVersion == "" {
			t.Errorf("%s has version %q and license %s", p.PackageName, p.PackageVersion, p.PackageLicenseConcluded)
		}
	}
	if len(d.Packages) < 40 {
		t.Errorf("%d packages", len(d.Packages))
	}
}

func TestChecksumsHold(t *testing.T) {
	command := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
	command.Dir = dist
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
