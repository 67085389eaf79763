// Package helm holds the chart of the control server, values for Kong's chart, and their tests. It is a module of its
// own, because it needs Helm and the API of Kubernetes. Run it by make chart.
package helm

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// object is a manifest.
type object map[string]any

func (o object) kind() string { return o["kind"].(string) }

// at returns what is at a path, whose numbers are indexes of lists; nil: nothing.
func (o object) at(path ...any) any {
	var value any = map[string]any(o)
	for _, step := range path {
		switch step := step.(type) {
		case string:
			fields, _ := value.(map[string]any)
			value = fields[step]
		case int:
			list, _ := value.([]any)
			if step >= len(list) {
				return nil
			}
			value = list[step]
		}
	}
	return value
}

var loadChart = sync.OnceValues(func() (*chart.Chart, error) {
	log.SetOutput(io.Discard) // the loader reports each symbolic link
	defer log.SetOutput(os.Stderr)
	return loader.LoadDir("tenant-rate-limiting")
})

// render returns the manifests of a release named limits, by the chart's values and these, in YAML.
func render(t *testing.T, values string) ([]object, error) {
	t.Helper()
	return renderAs(t, "limits", values)
}

func renderAs(t *testing.T, name, values string) ([]object, error) {
	t.Helper()
	c, err := loadChart()
	require.NoError(t, err)
	given, err := chartutil.ReadValues([]byte(values))
	require.NoError(t, err)
	release := chartutil.ReleaseOptions{Name: name, Namespace: "gateway", Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(c, given, release, nil)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	var found []object
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, ".yaml") {
			found = append(found, documents(t, files[name])...)
		}
	}
	return found, nil
}

// documents returns the documents of a YAML file. A key that is there twice fails the test.
func documents(t *testing.T, text string) (all []object) {
	t.Helper()
	reader := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	for {
		part, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		var o object
		require.NoError(t, yaml.UnmarshalStrict(part, &o), "%s", part)
		if o != nil {
			all = append(all, o)
		}
	}
}

// operators are the types of the Prometheus operator.
var operators = map[string]func() any{
	"ServiceMonitor": func() any { return new(monitoring.ServiceMonitor) },
	"PodMonitor":     func() any { return new(monitoring.PodMonitor) },
	"PrometheusRule": func() any { return new(monitoring.PrometheusRule) },
}

// check fails the test unless Kubernetes would accept the manifest, without a field that it would ignore.
func check(t *testing.T, o object) {
	t.Helper()
	if o["apiVersion"] == "monitoring.coreos.com/v1" {
		text, err := yaml.Marshal(o)
		require.NoError(t, err)
		require.NoError(t, yaml.UnmarshalStrict(text, operators[o.kind()]()), "%s", text)
		return
	}
	schema, err := schemaOf(o["apiVersion"].(string), o.kind())
	require.NoError(t, err)
	if err := schema.Validate(plain(t, o)); err != nil {
		t.Errorf("%s %v: %v", o.kind(), o.at("metadata", "name"), err)
	}
}

// rendered are values, and the kinds of what they render.
var rendered = []struct{ name, values, kinds string }{
	{"the defaults", ``, `Deployment Job NetworkPolicy NetworkPolicy PodDisruptionBudget Service Service`},
	{
		"everything", everything,
		strings.Repeat("ConfigMap ", 7) + `Deployment Job NetworkPolicy NetworkPolicy PodDisruptionBudget PodMonitor ` +
			`PrometheusRule Service Service ServiceMonitor`,
	},
	{
		"nothing that is optional", `{insecureHTTP: true, tls: {existingSecret: ""}, database: {keeperKey: ""},
			migrations: {enabled: false}, podDisruptionBudget: {enabled: false}, networkPolicy: {enabled: false}}`,
		`Deployment Service Service`,
	},
	{
		"migrations alone", `{replicas: 0, networkPolicy: {enabled: false}}`,
		`Deployment Job PodDisruptionBudget Service Service`,
	},
	{
		"a config of others",
		`{config: {existingConfigMap: kong, key: a.yml}, redis: {existingSecret: redis}, global: {}}`,
		`Deployment Job NetworkPolicy NetworkPolicy PodDisruptionBudget Service Service`,
	},
}

const everything = `
replicas: 3
image: {repository: registry.example:5000/limits, tag: 1.2.3, pullPolicy: Always, pullSecrets: [registry]}
config:
  pluginRoute: "no: 1"
  inline: |
    _format_version: "3.0"
    plugins:
    - name: tenant-rate-limiting
      config: {tenant_from: [consumer.custom_id], default_tier: all, tiers: [{name: all, limits: []}], strategy: local}
redis: {existingSecret: redis, key: auth}
tls: {existingSecret: tls, clientCAKey: ca.crt}
trustedProxies: [10.1.0.0/16, "fd00::/8"]
portal: {enabled: true, existingSecret: portal}
extraArgs: [--abuse=enforce, '--kafka-user=a "b"']
extraVolumes: [{name: kafka, secret: {secretName: kafka}}]
extraVolumeMounts: [{name: kafka, mountPath: /etc/kafka, readOnly: true}]
service: {type: LoadBalancer, port: 443, annotations: {a.example/b: "true"}}
networkPolicy: {apiFrom: [{ipBlock: {cidr: 10.0.0.0/8}}], egressPorts: [6432, 6380, 443, 9093]}
monitoring: {enabled: true, labels: {release: prometheus}, kong: {namespaces: [kong]}}
dashboards: {enabled: true, labels: {grafana_dashboard: "1", team: limits}}
podAnnotations: {a.example/inject: "false"}
nodeSelector: {kubernetes.io/arch: arm64}
tolerations: [{key: dedicated, operator: Exists}]
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms: [{matchExpressions: [{key: a, operator: In, values: [b]}]}]
`

func TestKubernetesAcceptsWhatTheChartRenders(t *testing.T) {
	for _, c := range rendered {
		t.Run(c.name, func(t *testing.T) {
			all, err := render(t, c.values)
			require.NoError(t, err)
			var kinds []string
			for _, o := range all {
				kinds = append(kinds, o.kind())
				check(t, o)
			}
			slices.Sort(kinds)
			require.Equal(t, c.kinds, strings.Join(kinds, " "))
		})
	}
}

// TestTheSchemasFindFaults shows that check finds what it is for.
func TestTheSchemasFindFaults(t *testing.T) {
	for manifest, want := range map[string]string{
		`{apiVersion: v1, kind: Service, spec: {port: 1}}`:                       `'port' not allowed`,
		`{apiVersion: v1, kind: Service, spec: {ports: [{name: a}]}}`:            `missing property 'port'`,
		`{apiVersion: v1, kind: ConfigMap, metadata: {labels: {a: 1}}}`:          `/metadata/labels/a`,
		`{apiVersion: batch/v1, kind: Job, spec: {template: {}, suspend: "no"}}`: `/spec/suspend`,
	} {
		o := documents(t, manifest)[0]
		schema, err := schemaOf(o["apiVersion"].(string), o.kind())
		require.NoError(t, err)
		require.ErrorContains(t, schema.Validate(plain(t, o)), want, manifest)
	}
}

func TestValuesThatMakeNoSenseAreDenied(t *testing.T) {
	for _, c := range []struct{ values, want string }{
		{`{replica: 3}`, `additional properties 'replica' not allowed`},
		{`{replicas: -1}`, `at '/replicas': minimum: got -1, want 0`},
		{`{replicas: "3"}`, `at '/replicas': got string, want integer`},
		{`{replicas: null}`, `missing property 'replicas'`},
		{`{image: {tag: latest}}`, `image.tag: name a release, not latest`},
		{`{image: {tag: "a b"}}`, `at '/image/tag': 'a b' does not match pattern`},
		{`{image: {tag: "@sha256:` + strings.Repeat("0", 64) + `"}}`, `at '/image/tag': '@sha256:`},
		{`{image: {repository: ""}}`, `at '/image/repository': '' does not match pattern`},
		{`{image: {repository: "a/b:1.0"}}`, `at '/image/repository': 'a/b:1.0' does not match pattern`},
		{`{image: {pullPolicy: always}}`, `at '/image/pullPolicy': value must be one of`},
		{`{database: {existingSecret: ""}}`, `at '/database/existingSecret': '' does not match pattern`},
		{`{database: {password: secret}}`, `at '/database': additional properties 'password' not allowed`},
		{`{migrations: {timeoutSeconds: 0}}`, `at '/migrations/timeoutSeconds': minimum: got 0, want 10`},
		{`{tls: {existingSecret: ""}}`, `tls.existingSecret: name a Secret of type kubernetes.io/tls, or set insecure`},
		{`{insecureHTTP: true}`, `insecureHTTP: excludes tls.existingSecret`},
		{
			`{insecureHTTP: true, tls: {existingSecret: "", clientCAKey: ca.crt}}`,
			`tls.clientCAKey: is a key of tls.existingSecret, which is empty`,
		},
		{
			`{insecureHTTP: true, tls: {existingSecret: ""}, service: {type: LoadBalancer}}`,
			`service.type: LoadBalancer would send tokens unencrypted`,
		},
		{`{service: {type: LoadBalancer}}`, `networkPolicy.apiFrom: clients of a LoadBalancer are outside`},
		{`{service: {type: ExternalName}}`, `at '/service/type': value must be one of 'ClusterIP', 'NodePort', 'Load`},
		{`{service: {port: 70000}}`, `at '/service/port': maximum: got 70,000, want 65,535`},
		{`{config: {inline: a, existingConfigMap: b}}`, `config.inline: excludes config.existingConfigMap`},
		{`{config: {inline: "a: ["}}`, `config.inline: is no decK file: `},
		{`{config: {pluginRoute: a}}`, `config.pluginRoute: chooses from a config`},
		{`{redis: {existingSecret: a}}`, `redis.existingSecret: only the config names a Redis`},
		{`{trustedProxies: [10.0.0.1]}`, `at '/trustedProxies/0': '10.0.0.1' does not match pattern`},
		{`{portal: {enabled: true}}`, `portal.existingSecret: with more than one replica, name a Secret`},
		{`{portal: {existingSecret: a}}`, `portal.existingSecret: has no use unless portal.enabled is true`},
		{`{extraArgs: [abuse=off]}`, `at '/extraArgs/0': 'abuse=off' does not match pattern`},
		{`{extraArgs: [--abuse=off, --listen=:1]}`, `extraArgs[1]: the chart sets --listen: service.port`},
		{`{extraArgs: [--database, off]}`, `at '/extraArgs/1'`},
		{`{extraArgs: [--database=off]}`, `extraArgs[0]: the chart sets --database: database.existingSecret`},
		{`{drainSeconds: -1}`, `at '/drainSeconds': minimum: got -1, want 0`},
		{`{shutdownSeconds: 1.5}`, `at '/shutdownSeconds': got number, want integer`},
		{`{podDisruptionBudget: {maxUnavailable: 0}}`, `/maxUnavailable': minimum: got 0, want 1`},
		{`{podDisruptionBudget: {maxUnavailable: 2}}`, `maxUnavailable: all 2 replicas may end at once`},
		{`{podDisruptionBudget: {minAvailable: 1}}`, `'/podDisruptionBudget': additional properties 'minAvailable'`},
		{`{resources: {limits: {memory: true}}}`, `at '/resources/limits/memory': got boolean`},
		{`{networkPolicy: {apiFrom: []}}`, `at '/networkPolicy/apiFrom': minItems: got 0, want 1`},
		{`{networkPolicy: {apiFrom: [{}]}}`, `at '/networkPolicy/apiFrom/0': minProperties: got 0, want 1`},
		{`{networkPolicy: {egressPorts: [https]}}`, `at '/networkPolicy/egressPorts/0': got string, want integer`},
		{`{monitoring: {intervalSeconds: 60}}`, `at '/monitoring/intervalSeconds': maximum: got 60, want 30`},
		{`{monitoring: {kong: {matchLabels: {app.kubernetes.io/name: null}}}}`, `/matchLabels': minProperties: got 0`},
		{`{podAnnotations: {checksum/config: a}}`, `podAnnotations: checksum/config is set by the chart`},
	} {
		_, err := render(t, c.values)
		require.ErrorContains(t, err, c.want, c.values)
	}
	_, err := render(t, `{tls: {existingSecret: ""}, portal: {enabled: true}}`)
	require.ErrorContains(t, err, "\n- tls.existingSecret: ", "all faults at once")
	require.ErrorContains(t, err, "\n- portal.existingSecret: ", "all faults at once")
	for _, name := range []string{"limits.eu", "1st"} {
		_, err := renderAs(t, name, "")
		require.ErrorContains(t, err, "the release's name, "+name+": is a Service's, too")
	}
	all, err := renderAs(t, strings.Repeat("a", 53), "") // Helm's longest
	require.NoError(t, err)
	for _, o := range all {
		require.LessOrEqual(t, len(o.at("metadata", "name").(string)), 63)
	}
}

// TestNullIsDeniedOrRight sets each value to null, which Helm takes for: it is not there.
func TestNullIsDeniedOrRight(t *testing.T) {
	var values map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "tenant-rate-limiting/values.yaml")), &values))
	var visit func(fields map[string]any, format string)
	visit = func(fields map[string]any, format string) {
		for name, value := range fields {
			null := fmt.Sprintf(format, fmt.Sprintf("%q: null", name))
			all, err := render(t, null)
			if err != nil {
				require.NotContains(t, err.Error(), "executing", null)
			}
			for _, o := range all {
				check(t, o)
			}
			if below, ok := value.(map[string]any); ok {
				visit(below, fmt.Sprintf(format, fmt.Sprintf("%q: {%%s}", name)))
			}
		}
	}
	visit(values, "{%s}")
}

// TestAlertsAndDashboardsAreThoseOfTheProject: the chart's are links, so they cannot differ from those that other tests
// check. Here they also survive the rendering, which has a syntax of its own for {{ }}.
func TestAlertsAndDashboardsAreThoseOfTheProject(t *testing.T) {
	all, err := render(t, everything)
	require.NoError(t, err)
	text, err := os.ReadFile("../prometheus/rules.yml")
	require.NoError(t, err)
	var rules any
	require.NoError(t, yaml.Unmarshal(text, &rules))
	files, err := filepath.Glob("../grafana/*.json")
	require.NoError(t, err)
	dashboards := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		dashboards[filepath.Base(file)] = string(bytes.TrimSpace(text))
	}
	found := map[string]string{}
	for _, o := range all {
		switch {
		case o.kind() == "PrometheusRule":
			require.Equal(t, rules, o["spec"])
		case o.kind() == "ConfigMap" && o.at("metadata", "labels", "grafana_dashboard") == "1":
			for name, text := range o["data"].(map[string]any) {
				found[name] = text.(string)
			}
		}
	}
	require.Equal(t, dashboards, found)
	for kind, endpoints := range map[string]string{"ServiceMonitor": "endpoints", "PodMonitor": "podMetricsEndpoints"} {
		for _, o := range all {
			if o.kind() == kind {
				relabelings := o.at("spec", endpoints, 0, "relabelings").([]any)
				last := object(relabelings[len(relabelings)-1].(map[string]any))
				require.Equal(t, "job", last["targetLabel"])
				require.Contains(t, string(text), fmt.Sprintf(`up{job="%v"} == 0`, last["replacement"]))
			}
		}
	}
	c, err := loadChart()
	require.NoError(t, err)
	for _, file := range c.Files {
		if name := file.Name; name != ".helmignore" && !strings.HasSuffix(name, ".json") && name != "files/rules.yml" {
			t.Errorf("the chart would contain %s: name it in .helmignore", name)
		}
	}
}

// plain returns a value as the validator of schemas has it.
func plain(t *testing.T, value any) any {
	t.Helper()
	text, err := json.Marshal(value)
	require.NoError(t, err)
	decoded, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	return decoded
}
