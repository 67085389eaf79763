package browser

import (
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/npmtest"
)

//go:embed testdata/axe
var manifests embed.FS

// axe returns the script of axe-core.
func axe(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, manifests))
	modules := npmtest.Modules(t, filepath.Join(dir, "testdata", "axe"))
	script, err := os.ReadFile(filepath.Join(modules, "node_modules", "axe-core", "axe.min.js"))
	require.NoError(t, err)
	return string(script)
}

// rules are those of WCAG 2.2 level A and AA, and axe's good practices. colors are the ones that compare colors: text
// with its background, and links with the text around them.
const (
	rules  = `["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]`
	colors = `{type: "rule", values: ["color-contrast", "link-in-text-block"]}`
)

// wcag runs rules of axe, and returns a line per violation.
const wcag = `axe.run(document, {
	runOnly: %s,
	resultTypes: ["violations"], selectors: false,
}).then(r => r.violations.flatMap(v => v.nodes.map(n =>
	v.id + ": " + n.html.slice(0, 200) + " (" + n.failureSummary.slice(0, 300) + ")")))`

// wide reports by how many pixels the page is wider than the screen.
const wide = `Math.max(0, document.documentElement.scrollWidth - document.documentElement.clientWidth)`

// focusOrder walks through the elements that the tab key reaches, and returns those that are focused out of the order
// of the document or without a visible mark.
const focusOrder = `(() => {
	const all = [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex]")]
		.filter(e => e.tabIndex >= 0 && !e.disabled && e.checkVisibility());
	const faults = all.filter(e => e.tabIndex > 0).map(e => "tabindex above 0: " + e.outerHTML.slice(0, 120));
	for (const e of all) {
		e.focus({focusVisible: true});
		const s = getComputedStyle(e);
		if (document.activeElement === e && s.outlineStyle === "none" && s.boxShadow === "none")
			faults.push("no visible focus: " + e.outerHTML.slice(0, 120));
	}
	return faults;
})()`

// Audit returns the faults of the page in accessibility: violations of WCAG 2.2 AA, a page that is wider than the
// screen, a focus that cannot be seen or jumps. On a dark screen, which shows what a light one does in other colors, it
// checks the colors, the width and the focus.
func (tab *Tab) Audit() (faults []string) {
	tab.t.Helper()
	Eval[chromedp.Void](tab, axe(tab.t)+";0")
	which := rules
	if tab.dark {
		which = colors
	}
	faults = Eval[[]string](tab, fmt.Sprintf(wcag, which))
	if pixels := Eval[float64](tab, wide); pixels > 0 {
		faults = append(faults, fmt.Sprintf("the page is %.0f pixels wider than the screen", pixels))
	}
	return append(faults, Eval[[]string](tab, focusOrder)...)
}
