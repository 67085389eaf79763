package helm

import (
	"bufio"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// top is the top folder, whose bin/ has the programs.
const top = "../.."

// into decodes a manifest, or a part of it, into a type of Kubernetes.
func into[T any](t *testing.T, value any) (typed T) {
	t.Helper()
	text, err := yaml.Marshal(value)
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalStrict(text, &typed), "%s", text)
	return typed
}

// podOf returns the pod of the only manifest of a kind.
func podOf(t *testing.T, all []object, kind string) corev1.PodSpec {
	t.Helper()
	for _, o := range all {
		if o.kind() == kind {
			return into[corev1.PodSpec](t, o.at("spec", "template", "spec"))
		}
	}
	t.Fatalf("there is no %s", kind)
	return corev1.PodSpec{}
}

// checkRestricted fails the test unless the pod keeps Kubernetes' Pod Security Standard restricted, has a root that is
// read-only, mounts only volumes that it has, and takes secrets by reference.
func checkRestricted(t *testing.T, pod *corev1.PodSpec) {
	t.Helper()
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
		require.True(t, v.Secret != nil || v.ConfigMap != nil || v.EmptyDir != nil, v.Name)
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		s := c.SecurityContext
		require.NotNil(t, s, c.Name)
		nonRoot, seccomp := s.RunAsNonRoot, s.SeccompProfile
		if p := pod.SecurityContext; p != nil && nonRoot == nil {
			nonRoot, seccomp = p.RunAsNonRoot, p.SeccompProfile
		}
		require.True(t, nonRoot != nil && *nonRoot && seccomp != nil && seccomp.Type == "RuntimeDefault", c.Name)
		require.True(t, *s.ReadOnlyRootFilesystem && !*s.AllowPrivilegeEscalation, c.Name)
		require.Equal(t, &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}, s.Capabilities, c.Name)
		for _, m := range c.VolumeMounts {
			require.True(t, volumes[m.Name], "%s mounts %s", c.Name, m.Name)
		}
		for _, e := range c.Env {
			require.True(t, !strings.Contains(e.Name, "PASSWORD") || e.ValueFrom.SecretKeyRef != nil, e.Name)
		}
	}
}

func TestPodsAreRestricted(t *testing.T) {
	for _, c := range rendered {
		all, err := render(t, c.values)
		require.NoError(t, err)
		for _, o := range all {
			require.NotEqual(t, "Secret", o.kind(), c.name)
			if o.at("spec", "template", "spec") != nil {
				pod := podOf(t, all, o.kind())
				checkRestricted(t, &pod)
				require.False(t, *pod.AutomountServiceAccountToken)
			}
		}
	}
}

// servers starts a Redis and a Postgres with a migrated database, and returns the folder with what they are reached by:
// the connection string in database, and a config in kong.yml.
func servers(t *testing.T) string {
	t.Helper()
	command := exec.Command("bash", "-euc", `. kong/servers.sh; start_servers >&2; echo "$dir"; cat`)
	command.Dir, command.Stderr = top, os.Stderr
	command.Env = append(os.Environ(), "LISTEN=127.0.0.1:0", "METRICS_LISTEN=off")
	end, err := command.StdinPipe()
	require.NoError(t, err)
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		end.Close()
		_ = command.Wait()
	})
	dir, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(dir)
}

// machine stands for the machine of a pod: folders for the mounts of its containers, and ports that are free.
type machine struct {
	root  string
	ports map[string]string // free ones, by those of the pod
}

var longFlag = regexp.MustCompile(`(=|^| )(/(etc|var|run|opt|kong_prefix)\b)`)

// newMachine returns a machine with files, by their paths in the containers. Its paths are short enough for sockets.
func newMachine(t *testing.T, files map[string]string, ports ...string) *machine {
	t.Helper()
	root, err := os.MkdirTemp("", "pod")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(root) })
	m := &machine{root, map[string]string{}}
	for path, text := range files {
		require.NoError(t, os.MkdirAll(filepath.Dir(root+path), 0o755))
		require.NoError(t, os.WriteFile(root+path, []byte(text), 0o600))
	}
	for _, port := range ports {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		_, m.ports[port], _ = net.SplitHostPort(listener.Addr().String())
		listener.Close()
	}
	return m
}

// here returns a word of a command as it is on this machine.
func (m *machine) here(word string) string {
	word = strings.ReplaceAll(longFlag.ReplaceAllString(word, "${1}"+m.root+"${2}"), "/usr/local/bin/", top+"/bin/")
	for port, free := range m.ports {
		word = strings.ReplaceAll(word, ":"+port, ":"+free)
	}
	return word
}

// command returns the command of a container, whose mounts exist then.
func (m *machine) command(t *testing.T, c *corev1.Container) *exec.Cmd {
	t.Helper()
	for _, mount := range c.VolumeMounts {
		require.NoError(t, os.MkdirAll(m.root+mount.MountPath, 0o755))
	}
	var words []string
	for _, word := range slices.Concat(c.Command, c.Args) {
		words = append(words, m.here(word))
	}
	return exec.Command(words[0], words[1:]...)
}

// process is a running command.
type process struct {
	*exec.Cmd
	log   strings.Builder // complete once it has ended
	ended chan struct{}
}

func start(t *testing.T, command *exec.Cmd) *process {
	t.Helper()
	p := &process{Cmd: command, ended: make(chan struct{})}
	p.Stderr = &p.log
	require.NoError(t, p.Start())
	go func() {
		_ = p.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Log(p.log.String())
		}
	})
	return p
}

// awaitEnd fails the test unless the process, which got a SIGTERM, ends well within its grace period.
func (p *process) awaitEnd(t *testing.T, grace time.Duration) {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(grace):
		t.Fatal("it does not end within its grace period")
	}
	require.True(t, p.ProcessState.Success(), p.log.String())
}

var client = &http.Client{
	Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
}

// ask returns the status that a probe of the container gets; 0: no answer.
func (m *machine) ask(t *testing.T, c *corev1.Container, probe *corev1.Probe) int {
	t.Helper()
	for _, port := range c.Ports {
		if port.Name == probe.HTTPGet.Port.String() {
			scheme := strings.ToLower(cmp.Or(string(probe.HTTPGet.Scheme), "http"))
			address := "127.0.0.1:" + m.ports[fmt.Sprint(port.ContainerPort)]
			answer, err := client.Get(scheme + "://" + address + probe.HTTPGet.Path)
			if err != nil {
				return 0
			}
			answer.Body.Close()
			return answer.StatusCode
		}
	}
	t.Fatalf("%s has no port %s", c.Name, probe.HTTPGet.Port.String())
	return 0
}

// await waits until a probe gets a status.
func (m *machine) await(t *testing.T, c *corev1.Container, probe *corev1.Probe, status int) {
	t.Helper()
	require.Eventually(t, func() bool { return m.ask(t, c, probe) == status }, 20*time.Second, 50*time.Millisecond)
}

// certificate returns a certificate and its key, in PEM.
func certificate(t *testing.T) (chain, key string) {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	pair := server.TLS.Certificates[0]
	private, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

// TestPodsRun runs the commands of all pods, with their files and ports, on a Redis and a Postgres.
func TestPodsRun(t *testing.T) {
	dir := servers(t)
	database := read(t, dir+"/database")
	t.Run("the control server", func(t *testing.T) { runControlServer(t, dir, database) })
	for _, way := range []string{"sidecar", "init-container"} {
		t.Run("Kong with "+way, func(t *testing.T) { runKong(t, way, database) })
	}
}

func runControlServer(t *testing.T, dir, database string) {
	chain, key := certificate(t)
	m := newMachine(t, map[string]string{
		"/etc/ratelimit/database/owner": database, "/etc/ratelimit/database/server": database,
		"/etc/ratelimit/database/keeper": database, "/etc/ratelimit/config/kong.yml": read(t, dir+"/kong.yml"),
		"/etc/ratelimit/tls/tls.crt": chain, "/etc/ratelimit/tls/tls.key": key, "/etc/ratelimit/tls/ca.crt": chain,
		"/etc/ratelimit/portal/portal-key": strings.Repeat("k", 32),
	}, "8090", "9543")
	all, err := render(t, `{config: {existingConfigMap: kong}, portal: {enabled: true, existingSecret: portal},
		drainSeconds: 1, trustedProxies: [10.0.0.0/8, "fd00::/8"], extraArgs: [--abuse=enforce]}`)
	require.NoError(t, err)
	job, pod := podOf(t, all, "Job"), podOf(t, all, "Deployment")
	out, err := m.command(t, &job.Containers[0]).CombinedOutput()
	require.NoError(t, err, "%s", out)

	serve := &pod.Containers[0]
	out, err = m.command(t, serve).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "there is no live token: no request can be authenticated: create a token")
	token := exec.Command(top+"/bin/ratelimit", "token", "create", "ann", "--role", "admin", "--reason", "first admin")
	token.Env = append(os.Environ(), "RATELIMIT_DATABASE="+strings.TrimSpace(database))
	out, err = token.CombinedOutput()
	require.NoError(t, err, "%s", out)

	running := start(t, m.command(t, serve))
	m.await(t, serve, serve.ReadinessProbe, http.StatusOK)
	require.Equal(t, http.StatusOK, m.ask(t, serve, serve.LivenessProbe))
	grace := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second
	require.NoError(t, running.Process.Signal(syscall.SIGTERM))
	m.await(t, serve, serve.ReadinessProbe, http.StatusServiceUnavailable)
	require.Equal(t, http.StatusOK, m.ask(t, serve, serve.LivenessProbe), "it drains, and must not be killed meanwhile")
	running.awaitEnd(t, grace)

	all, err = render(t, everything)
	require.NoError(t, err)
	pod = podOf(t, all, "Deployment")
	serve = &pod.Containers[0]
	serve.Args = append(serve.Args, "--plugin-route=", "--kafka-user=none") // there is one config, and no Kafka
	running = start(t, m.command(t, serve))
	m.await(t, serve, serve.ReadinessProbe, http.StatusOK) // without a certificate
	_, err = client.Get("https://127.0.0.1:" + m.ports["8090"])
	require.ErrorContains(t, err, "certificate required")
}

// kongValues are the values of Kong's chart that the files here use. Its chart is not here: pod writes the pod that it
// makes of them.
type kongValues struct {
	IngressController struct{ Enabled bool }
	Image             struct{ Repository, Tag string }
	Env               map[string]string
	CustomEnv         map[string]corev1.EnvVar
	Deployment        struct {
		InitContainers          []corev1.Container
		UserDefinedVolumes      []corev1.Volume
		UserDefinedVolumeMounts []corev1.VolumeMount
	}
	TerminationGracePeriodSeconds int64
}

// pod returns the pod that Kong's chart 3.4.1 makes of the values, without the ingress controller.
func (v *kongValues) pod() *corev1.PodSpec {
	yes, no, user := true, false, int64(1000)
	proxy := corev1.Container{
		Name: "proxy", Image: v.Image.Repository + ":" + v.Image.Tag,
		Env: []corev1.EnvVar{{Name: "KONG_PREFIX", Value: "/kong_prefix/"}},
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: &user, RunAsGroup: &user, RunAsNonRoot: &yes, ReadOnlyRootFilesystem: &yes,
			AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: "RuntimeDefault"},
		},
		VolumeMounts: append([]corev1.VolumeMount{
			{Name: "kong-prefix-dir", MountPath: "/kong_prefix/"}, {Name: "kong-tmp", MountPath: "/tmp"},
		}, v.Deployment.UserDefinedVolumeMounts...),
	}
	for name, value := range v.Env {
		proxy.Env = append(proxy.Env, corev1.EnvVar{Name: "KONG_" + strings.ToUpper(name), Value: value})
	}
	for name, value := range v.CustomEnv {
		proxy.Env = append(proxy.Env, corev1.EnvVar{Name: strings.ToUpper(name), ValueFrom: value.ValueFrom})
	}
	scratch := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	return &corev1.PodSpec{
		InitContainers: v.Deployment.InitContainers, Containers: []corev1.Container{proxy},
		Volumes: append([]corev1.Volume{
			{Name: "kong-prefix-dir", VolumeSource: scratch}, {Name: "kong-tmp", VolumeSource: scratch},
		}, v.Deployment.UserDefinedVolumes...),
		TerminationGracePeriodSeconds: &v.TerminationGracePeriodSeconds,
	}
}

// kongPod returns the pod of a file with values, and its variables.
func kongPod(t *testing.T, file string) (*corev1.PodSpec, map[string]string) {
	t.Helper()
	var values kongValues
	require.NoError(t, yaml.UnmarshalStrict([]byte(read(t, file)), &values))
	pod := values.pod()
	environment := map[string]string{}
	for _, e := range pod.Containers[0].Env {
		environment[e.Name] = e.Value
	}
	return pod, environment
}

func TestKubernetesAndKongAcceptTheValuesForKong(t *testing.T) {
	settings := read(t, top+"/spec/testdata/kong-3.9-settings.txt")
	for _, plugin := range []string{"tenant_rate_limiting", "tenant_rate_settling"} {
		settings += strings.ReplaceAll(settings, "_XXX_", "_"+plugin+"_")
	}
	version := chartVersion(t)
	for _, file := range []string{"kong-sidecar.yaml", "kong-init-container.yaml"} {
		t.Run(file, func(t *testing.T) {
			pod, environment := kongPod(t, file)
			check(t, into[object](t, corev1.Pod{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "kong"},
				Spec: *pod,
			}))
			checkRestricted(t, pod)
			require.Equal(t, "tenant-rate-limiting/programs:"+version, pod.InitContainers[0].Image)
			for name := range environment {
				if setting, ofKong := strings.CutPrefix(name, "KONG_"); ofKong {
					require.Contains(t, settings, "\n"+strings.ToLower(setting)+"\n")
				}
			}
			require.Contains(t, environment, "REDIS_PASSWORD", "kong-cluster-plugin.yaml names it")
		})
	}
}

// chartVersion returns the version of the image that the chart runs, which is that of the programs.
func chartVersion(t *testing.T) string {
	t.Helper()
	c, err := loadChart()
	require.NoError(t, err)
	out, err := exec.Command(top+"/bin/ratelimit", "version").Output()
	require.NoError(t, err)
	require.Equal(t, strings.Fields(string(out))[0], c.AppVersion(), "Chart.yaml")
	return c.AppVersion()
}

// runKong runs what a pod of Kong runs of ours: the copy, the commands that Kong runs, and the process.
func runKong(t *testing.T, way, database string) {
	pod, environment := kongPod(t, "kong-"+way+".yaml")
	m := newMachine(t, map[string]string{"/etc/tenant-rate-limiting/database": database}, "9542")
	proxy := &pod.Containers[0]
	m.command(t, &corev1.Container{Command: []string{"true"}, VolumeMounts: proxy.VolumeMounts[2:]})
	require.NoError(t, os.MkdirAll(m.root+"/kong_prefix", 0o755))
	out, err := m.command(t, &pod.InitContainers[0]).CombinedOutput()
	require.NoError(t, err, "%s", out)

	prefix := "KONG_PLUGINSERVER_TENANT_RATE_LIMITING_"
	command := exec.Command("sh", "-c", "exec "+m.here(environment[prefix+"START_CMD"]))
	command.Env = []string{} // as Kong starts it
	metrics := &corev1.Container{}
	if len(pod.InitContainers) > 1 {
		sidecar := &pod.InitContainers[1]
		require.Equal(t, corev1.ContainerRestartPolicyAlways, *sidecar.RestartPolicy)
		require.Empty(t, environment[prefix+"START_CMD"], "Kong would start a second process")
		require.Equal(t, proxy.SecurityContext.RunAsUser, sidecar.SecurityContext.RunAsUser, "only it may connect")
		command, metrics = m.command(t, sidecar), sidecar
	}
	running := start(t, command)
	for plugin, prefix := range map[string]string{
		"tenant-rate-limiting": prefix, "tenant-rate-settling": "KONG_PLUGINSERVER_TENANT_RATE_SETTLING_",
	} {
		require.Contains(t, environment["KONG_PLUGINS"], plugin)
		require.Contains(t, environment["KONG_PLUGINSERVER_NAMES"], plugin)
		out, err := exec.Command("sh", "-c", m.here(environment[prefix+"QUERY_CMD"])).Output()
		require.NoError(t, err)
		require.Contains(t, string(out), `"Name":"`+plugin+`"`)
		require.Eventually(t, func() bool {
			connection, err := net.Dial("unix", m.here(environment[prefix+"SOCKET"]))
			if err == nil {
				connection.Close()
			}
			return err == nil
		}, 20*time.Second, 20*time.Millisecond, plugin)
	}
	if metrics.StartupProbe != nil {
		m.await(t, metrics, metrics.StartupProbe, http.StatusOK)
		require.Equal(t, http.StatusOK, m.ask(t, metrics, metrics.LivenessProbe))
	}
	require.NoError(t, running.Process.Signal(syscall.SIGTERM))
	running.awaitEnd(t, 20*time.Second)
}

// kongClusterPlugin has the fields of the custom resource of Kong's ingress controller 3.5 that are used here.
type kongClusterPlugin struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Plugin            string
	Config            map[string]any
}

func TestTheConfigsOfTheIngressControllerAreValid(t *testing.T) {
	var plugins []any
	for _, o := range documents(t, read(t, "kong-cluster-plugin.yaml")) {
		p := into[kongClusterPlugin](t, o)
		require.Equal(t, "configuration.konghq.com/v1 KongClusterPlugin", p.APIVersion+" "+p.Kind)
		require.Equal(t, "kong", p.Annotations["kubernetes.io/ingress.class"])
		plugins = append(plugins, map[string]any{"name": p.Plugin, "config": p.Config})
	}
	require.Len(t, plugins, 2)
	deck, err := yaml.Marshal(map[string]any{"_format_version": "3.0", "plugins": plugins})
	require.NoError(t, err)
	checkDeck(t, deck)
}

// checkDeck fails the test unless ratelimit validate accepts a decK file.
func checkDeck(t *testing.T, deck []byte) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kong.yml")
	require.NoError(t, os.WriteFile(file, deck, 0o600))
	out, err := exec.Command(top+"/bin/ratelimit", "validate", file).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func TestTheExampleIsValid(t *testing.T) {
	all, err := render(t, read(t, "limits.yaml"))
	require.NoError(t, err)
	for _, o := range all {
		check(t, o)
		if o.at("data", "kong.yml") != nil {
			checkDeck(t, []byte(o.at("data", "kong.yml").(string)))
		}
	}
	page := read(t, top+"/docs/kubernetes.md")
	for _, path := range regexp.MustCompile(`[ =](kong/helm/\S+)`).FindAllStringSubmatch(page, -1) {
		_, err := os.Stat(filepath.Join(top, path[1]))
		require.NoError(t, err, "docs/kubernetes.md")
	}
}
