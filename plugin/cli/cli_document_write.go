package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"unicode"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

// documentOnly makes the filter of a list that is shown as a document select what a document can hold: the active
// policies of one namespace.
func (c *call) documentOnly(f *pgstore.PolicyFilter) error {
	if c.format != formatYAML {
		return nil
	}
	if f.Slot == pgstore.SlotCandidate {
		return wrong("-o yaml shows active policies only: remove --slot candidate")
	}
	for _, page := range [...]string{"max", "after"} {
		if c.given(page) {
			return wrong("-o yaml writes a complete document: remove --%s, or use -o json", page)
		}
	}
	f.Slot, f.Namespace = pgstore.SlotActive, cmp.Or(f.Namespace, "default")
	return nil
}

// warnOfNamespaces names the namespaces that a document leaves out, unless --namespace chose one.
func (c *call) warnOfNamespaces(ctx context.Context, s *pgstore.Store, f pgstore.PolicyFilter) error {
	if c.given("namespace") {
		return nil
	}
	shown := f.Namespace
	f.Namespace = ""
	names, err := s.Namespaces(ctx, f)
	names = slices.DeleteFunc(names, func(name string) bool { return name == shown })
	if len(names) > 0 {
		c.warn("the document covers namespace %s only; use --namespace for the others: %s", shown, strings.Join(names, ", "))
	}
	return err
}

// showDocument writes policies while they come as the document that apply reads. Of a part of the policies it says so:
// applied as it is, it would delete the others. The list is closed by its last line, so a document that is cut short is
// no YAML, instead of a document of fewer policies.
func (c *call) showDocument(f pgstore.PolicyFilter, rows iter.Seq2[pgstore.Policy, error]) error {
	head := ""
	if f.Tier+f.Tenant+f.Name != "" {
		head = "# Some of the policies only: apply them with --partial, or the others are deleted.\n"
	}
	name, err := yamlText(f.Namespace)
	if err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	head += "namespace: " + name + "policies: ["
	for p, err := range rows {
		if err != nil {
			return err
		}
		text, err := documentLine(p)
		if err == nil {
			_, err = io.WriteString(c.stdout, head+text)
		}
		if err != nil {
			return fmt.Errorf("write the output: %w", err)
		}
		head = ""
	}
	if head == "" {
		head = "\n"
	}
	if _, err := io.WriteString(c.stdout, head+"]\n"); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// documentLine returns a policy as a line of a document's list, after the end of the line before it. Where YAML would
// not escape what a terminal would obey, the line is JSON, which is YAML too.
func documentLine(p pgstore.Policy) (string, error) {
	fields := yaml.Node{Kind: yaml.MappingNode}
	for i := range documentFields {
		if err := addField(&fields, documentFields[i].Name, documentFields[i].In(&p.Policy)); err != nil {
			return "", err
		}
	}
	fields.Style = yaml.FlowStyle
	text, err := yamlText(&fields)
	if err != nil {
		return "", err
	}
	if text = strings.TrimSuffix(
		text,
		"\n",
	); strings.IndexFunc(
		text,
		func(r rune) bool { return !unicode.IsPrint(r) },
	) < 0 {
		return "\n  " + text + ",", nil
	}
	p.Namespace, p.Slot = "", "" // the document's
	text, err = jsonText(p.Policy, "  ")
	return "\n  " + text + ",", err
}

// addField adds a field to a mapping, unless it is absent.
func addField(to *yaml.Node, name string, value any) error {
	switch value := value.(type) {
	case **int64:
		if *value == nil {
			return nil
		}
	case *int64:
		if *value == 0 {
			return nil
		}
	case *string:
		if *value == "" {
			return nil
		}
	case *bool:
		if !*value {
			return nil
		}
	}
	var key, encoded yaml.Node
	key.SetString(name)
	if err := encoded.Encode(value); err != nil {
		return err
	}
	to.Content = append(to.Content, &key, &encoded)
	return nil
}

func yamlText(value any) (string, error) {
	text, err := yaml.Marshal(value)
	return string(text), err
}
