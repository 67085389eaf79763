package spec

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// passwords are the variables that docker-compose.yml requires.
var passwords = types.Mapping{"POSTGRES_PASSWORD": "of-postgres", "REDIS_PASSWORD": "of-redis"}

// loadCompose loads docker-compose.yml as docker compose does, with every profile.
func loadCompose(environment types.Mapping) (*types.Project, error) {
	top, err := filepath.Abs("..")
	if err != nil {
		return nil, err
	}
	return loader.LoadWithContext(context.Background(), types.ConfigDetails{
		WorkingDir:  top,
		ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(top, "docker-compose.yml")}},
		Environment: maps.Clone(environment), // the loader writes to it
	}, loader.WithProfiles([]string{"*"}))
}

// composed loads docker-compose.yml with passwords.
func composed(t testing.TB) *types.Project {
	t.Helper()
	project, err := loadCompose(passwords)
	require.NoError(t, err)
	return project
}

// variables returns the environment of a service.
func variables(s types.ServiceConfig) map[string]string {
	environment := map[string]string{}
	for name, value := range s.Environment {
		if value != nil {
			environment[name] = *value
		}
	}
	return environment
}

// startFlags returns the flags of the plugin server in Kong's start command.
func startFlags(t testing.TB, project *types.Project) map[string]string {
	t.Helper()
	words := strings.Fields(variables(project.Services["kong"])[startCommand])
	if len(words)%2 != 1 || words[0] != "/usr/local/bin/tenant-rate-limiting" {
		t.Fatalf("start command %q", words)
	}
	flags := map[string]string{}
	for pair := range slices.Chunk(words[1:], 2) {
		flags[pair[0]] = pair[1]
	}
	return flags
}

func TestComposeRequiresItsPasswordsAndHasNoOthers(t *testing.T) {
	t.Parallel()
	for name := range passwords {
		lacking := maps.Clone(passwords)
		delete(lacking, name)
		if _, err := loadCompose(lacking); err == nil || !strings.Contains(err.Error(), "set "+name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
	project := composed(t)
	secret := regexp.MustCompile(`(?i)(password|passwd|secret|token)[=: ]+(\S+)`)
	for name, s := range project.Services {
		texts := append(slices.Clone(s.Command), s.Entrypoint...)
		for variable, value := range variables(s) {
			texts = append(texts, variable+"="+value)
		}
		for _, found := range secret.FindAllStringSubmatch(strings.Join(texts, " "), -1) {
			if !slices.Contains([]string{"of-postgres", "of-redis"}, found[2]) {
				t.Errorf("%s has a secret of its own: %s", name, found[0])
			}
		}
	}
	if got := variables(project.Services["postgres"])["POSTGRES_PASSWORD"]; got != "of-postgres" {
		t.Errorf("the password of Postgres is %q", got)
	}
}

func TestComposeRunsPinnedReleases(t *testing.T) {
	t.Parallel()
	for name, s := range composed(t).Services {
		switch {
		case s.Build == nil && !version.MatchString(s.Image):
			t.Errorf("%s: %s is not pinned", name, s.Image)
		case s.Build != nil && (s.Build.Target != "demo" ||
			filepath.Join(s.Build.Context, s.Build.Dockerfile) != absolute(t, "kong/Dockerfile")):
			t.Errorf("%s is built of %s, target %q", name, s.Build.Dockerfile, s.Build.Target)
		}
	}
	if image := composed(t).Services["postgres"].Image; !strings.HasPrefix(image, "postgres:15.") {
		t.Errorf("Postgres is %s, want 15", image)
	}
}

// absolute returns the path of a file of the project.
func absolute(t testing.TB, path string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", path))
	require.NoError(t, err)
	return path
}

func TestComposeWaitsForHealthyServices(t *testing.T) {
	t.Parallel()
	project := composed(t)
	for name, s := range project.Services {
		stays := s.Restart == types.RestartPolicyUnlessStopped
		checked := s.HealthCheck != nil && !s.HealthCheck.Disable || name == "kong" // whose image has a check
		if stays != checked {
			t.Errorf("%s: stays up %v, has a health check %v", name, stays, checked)
		}
		for other, dependency := range s.DependsOn {
			want := types.ServiceConditionCompletedSuccessfully
			if project.Services[other].Restart == types.RestartPolicyUnlessStopped {
				want = types.ServiceConditionHealthy
			}
			if dependency.Condition != want {
				t.Errorf("%s waits until %s is %s, want %s", name, other, dependency.Condition, want)
			}
		}
	}
	for _, name := range []string{"migrations", "redis"} {
		if _, waits := project.Services["kong"].DependsOn[name]; !waits {
			t.Errorf("kong does not wait for %s", name)
		}
	}
}

func TestComposePublishesOnTheLoopbackOnly(t *testing.T) {
	t.Parallel()
	project := composed(t)
	published := map[string]uint32{}
	for name, s := range project.Services {
		for _, port := range s.Ports {
			published[name] = port.Target
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s: port %s is published on %q", name, port.Published, port.HostIP)
			}
		}
	}
	_, listen, err := net.SplitHostPort(variables(project.Services["kong"])["KONG_PROXY_LISTEN"])
	if err != nil || listen != strconv.Itoa(int(published["kong"])) {
		t.Errorf("Kong listens on port %s (%v), published is %d", listen, err, published["kong"])
	}
	check := project.Services["prometheus"].HealthCheck.Test
	want := fmt.Sprintf("http://127.0.0.1:%d/-/ready", published["prometheus"])
	if len(published) != 4 || check[len(check)-1] != want {
		t.Errorf("published are %v, want Kong, the REST API, Grafana, and Prometheus with the health check %q",
			published, check)
	}
}

func TestComposeMountsExistingFilesWhereTheyAreRead(t *testing.T) {
	t.Parallel()
	project := composed(t)
	for name, s := range project.Services {
		for _, mount := range s.Volumes {
			if mount.Type != types.VolumeTypeBind {
				continue
			}
			// Docker makes a folder of a path that does not exist, so only Grafana, which reads folders, may have one.
			info, err := os.Stat(mount.Source)
			if err != nil || info.IsDir() != (name == "grafana") || !mount.ReadOnly {
				t.Errorf("%s: %s must exist, be a file, and mounted read-only: %v", name, mount.Source, err)
			}
		}
	}
	kong, flags := project.Services["kong"], startFlags(t, project)
	if len(kong.Volumes) != 1 || kong.Volumes[0].Target != flags["-snapshot-dir"] {
		t.Errorf("the volumes %v are not the snapshot directory %s", kong.Volumes, flags["-snapshot-dir"])
	}
	made := one(t, "install", texts(dockerfile(t), "RUN", "gateway"))
	if !strings.HasPrefix(made, "install -d -o kong ") || !strings.HasSuffix(made, " "+flags["-snapshot-dir"]) {
		t.Errorf("the image makes another directory than %s: %s", flags["-snapshot-dir"], made)
	}
	if len(kong.Configs) != 1 || kong.Configs[0].Source != "database" ||
		kong.Configs[0].Target != flags["-database-file"] {
		t.Errorf("the configs %v are not the database file %s", kong.Configs, flags["-database-file"])
	}
	for _, m := range project.Services["grafana"].Volumes {
		if _, err := os.Stat(filepath.Join(m.Source, map[string]string{
			"/etc/grafana/provisioning": "dashboards/rate-limiter.yml", "/etc/grafana/dashboards": "rollout.json",
		}[m.Target])); err != nil {
			t.Errorf("Grafana does not find its files in %s: %v", m.Target, err)
		}
	}
	own := absolute(t, "kong/prometheus.yml") + ":/etc/prometheus/prometheus.yml" // where the image of Prometheus looks
	if m := project.Services["prometheus"].Volumes[0]; m.Source+":"+m.Target != own {
		t.Errorf("Prometheus gets %s:%s, want %s", m.Source, m.Target, own)
	}
}

func TestComposeGivesKongOnlySettingsThatItHas(t *testing.T) {
	t.Parallel()
	kong := variables(composed(t).Services["kong"])
	if unknown := unknownToKong(t, kong); len(unknown) > 0 {
		t.Errorf("not settings of Kong: %v", unknown)
	}
	image := imageEnvironment(t)[startCommand]
	if !strings.HasPrefix(kong[startCommand], strings.Join(strings.Fields(image)[:3], " ")+" ") {
		t.Errorf("the start command %s is not the image's, %s, and more", kong[startCommand], image)
	}
	reference, _ := pluginConfig(t, demoConfig(t))["redis"].(map[string]any)["password"].(string)
	name, isReference := strings.CutPrefix(strings.TrimSuffix(reference, "}"), "{vault://env/")
	if variable := strings.ToUpper(strings.ReplaceAll(name, "-", "_")); !isReference || kong[variable] != "of-redis" {
		t.Errorf("%s refers to %s, which is %q", reference, variable, kong[variable])
	}
}

func TestComposeNamesLeadToServices(t *testing.T) {
	t.Parallel()
	project := composed(t)
	names := map[string]bool{}
	for name, s := range project.Services {
		names[name] = true
		if _, inside := s.Networks["inside"]; !inside || len(s.Networks) != 1 {
			t.Errorf("%s is in the networks %v", name, s.Networks)
		}
		if network := s.Networks["inside"]; network != nil {
			for _, alias := range network.Aliases {
				names[alias] = true
			}
		}
	}
	config, err := gateway.ParseConfig([]byte(demoConfig(t)))
	require.NoError(t, err)
	redis, _ := pluginConfig(t, demoConfig(t))["redis"].(map[string]any)
	hosts := []string{redis["host"].(string), database(t, project).Host}
	for _, s := range config.Services {
		hosts = append(hosts, s.Host)
	}
	for _, host := range hosts {
		if !names[host] {
			t.Errorf("no service is called %s", host)
		}
	}
	for _, server := range []string{"listen 80;", "$request_method $request_uri"} {
		if content := project.Configs["echo"].Content; !strings.Contains(content, server) {
			t.Errorf("no %q in the echo's configuration:\n%s", server, content)
		}
	}
}

// database returns the connection settings of the programs for Postgres.
func database(t testing.TB, project *types.Project) *pgx.ConnConfig {
	t.Helper()
	config, err := pgx.ParseConfig(project.Configs["database"].Content)
	require.NoError(t, err)
	return config
}

func TestComposeHasOneDatabase(t *testing.T) {
	t.Parallel()
	project := composed(t)
	config, postgres := database(t, project), variables(project.Services["postgres"])
	mounted := project.Services["postgres"].Configs
	const target = "/docker-entrypoint-initdb.d/owner.sql"
	user := postgres["POSTGRES_USER"]
	if len(mounted) != 1 || mounted[0].Source != "owner" || mounted[0].Target != target || user != "" {
		t.Errorf("the image of Postgres runs %v as the user %q, want the script of the owner, as superuser", mounted, user)
	}
	for _, name := range []string{"migrations", "operator", "control"} {
		if entry := project.Services[name].Entrypoint; !slices.Equal(entry, []string{"/usr/local/bin/ratelimit"}) {
			t.Errorf("%s runs %q", name, entry)
		}
		if dsn := variables(project.Services[name])["RATELIMIT_DATABASE"]; dsn != project.Configs["database"].Content {
			t.Errorf("%s has the database %q", name, dsn)
		}
	}
	check := strings.Join(project.Services["postgres"].HealthCheck.Test, " ")
	if want := "CMD pg_isready -h 127.0.0.1 -U " + config.User + " -d " + config.Database; check != want {
		t.Errorf("the health check is %q, want %q", check, want)
	}
}

func TestPrometheusScrapesThePluginAndTheRESTAPI(t *testing.T) {
	t.Parallel()
	var config struct {
		Global struct {
			Interval string `yaml:"scrape_interval"`
			Timeout  string `yaml:"scrape_timeout"`
		}
		Rules []string `yaml:"rule_files"` // beside the file, where compose mounts them
		Jobs  []struct {
			Name    string                       `yaml:"job_name"`
			Path    string                       `yaml:"metrics_path"`
			Statics []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	decoder := yaml.NewDecoder(strings.NewReader(file(t, "kong/prometheus.yml")))
	decoder.KnownFields(true)
	require.NoError(t, decoder.Decode(&config))
	_, port, err := net.SplitHostPort(startFlags(t, composed(t))["-metrics-listen"])
	require.NoError(t, err)
	for _, rules := range config.Rules {
		file(t, "kong/prometheus/"+rules)
		if mounted := ":/etc/prometheus/" + rules + ":ro"; !strings.Contains(file(t, "docker-compose.yml"), mounted) {
			t.Errorf("compose does not mount the rules: no %s", mounted)
		}
	}
	job := config.Jobs[0]
	if job.Path != "/metrics" || !slices.Equal(job.Statics[0].Targets, []string{"kong:" + port}) {
		t.Errorf("it scrapes %s of %v, the plugin listens on port %s", job.Path, job.Statics, port)
	}
	command := strings.Join(composed(t).Services["control"].Command, " ")
	flag := regexp.MustCompile(`--metrics-listen=\S+:(\d+)`).FindStringSubmatch(command)
	if flag == nil || !strings.Contains(file(t, "kong/prometheus.yml"), fmt.Sprintf("targets: [control:%s]", flag[1])) {
		t.Errorf("Prometheus does not scrape the service control at %v", flag)
	}
}
