// Package browser drives a headless Chromium in tests of web pages. A [Tab] records what a developer would see in the
// console: errors of scripts, violations of the content security policy, and requests that failed. Its audit runs
// axe-core, the accessibility rules of npm's package of that name.
//
// Chromium comes from Debian's package, which is installed if it is missing.
package browser

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/debian"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/npmtest"
)

// patience bounds one step of a tab. It is long because tests share a busy machine.
const patience = 2 * time.Minute

// Browser is a running Chromium.
type Browser struct{ ctx context.Context }

// Start starts a Chromium that ends with the test. It reaches the loopback only.
func Start(t testing.TB) *Browser {
	t.Helper()
	path, err := find()
	require.NoError(t, err)
	ctx, stop := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.WSURLReadTimeout(patience),
		chromedp.Flag("disable-gpu", true), chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"),
	)...)
	t.Cleanup(stop)
	ctx, end := chromedp.NewContext(ctx)
	t.Cleanup(end)
	require.NoErrorf(t, chromedp.Do(ctx), "start %s", path)
	return &Browser{ctx}
}

// find returns the path of a Chromium. The one without windows takes half of the time of the processor, but not every
// release of Debian and Ubuntu has it.
func find() (path string, err error) {
	for _, name := range []string{"chromium-headless-shell", "chromium"} {
		found, missing := debian.Program(name, name)
		if missing == nil {
			return found, nil
		}
		err = errors.Join(err, missing)
	}
	return "", err
}

// Screen is the size and the color scheme of a screen.
type Screen struct {
	Name          string
	Width, Height int64
	Dark, Mobile  bool
	NoScript      bool // JavaScript is off
}

// Screens of tests.
var (
	Desktop = Screen{Name: "desktop", Width: 1280, Height: 900}
	Phone   = Screen{Name: "phone", Width: 390, Height: 844, Mobile: true}
	Dark    = Screen{Name: "dark", Width: 1280, Height: 900, Dark: true}
)

// Tab is a page of a browser, with cookies of its own.
type Tab struct {
	t      testing.TB
	ctx    context.Context
	dark   bool // its color scheme
	mu     sync.Mutex
	faults []string
}

// Tab opens an empty page that shares no cookies with others.
func (b *Browser) Tab(t testing.TB, screen Screen) *Tab {
	t.Helper()
	ctx, end := chromedp.NewContext(b.ctx, chromedp.WithNewBrowserContext())
	t.Cleanup(end)
	require.NoError(t, chromedp.Do(ctx), "open a tab")
	tab := &Tab{t: t, ctx: ctx}
	tab.Show(screen)
	tab.do("watch a tab", call(log.Enable, cdp.Empty{}), call(runtime.Enable, cdp.Empty{}))
	require.NoError(t, chromedp.Listen(ctx, tab.record))
	return tab
}

// Show moves the page of the tab to another screen, without a load.
func (tab *Tab) Show(screen Screen) {
	tab.t.Helper()
	tab.dark = screen.Dark
	scheme := "light"
	if screen.Dark {
		scheme = "dark"
	}
	tab.do("set the screen of a tab",
		call(emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
			Width: screen.Width, Height: screen.Height, DeviceScaleFactor: 1, Mobile: screen.Mobile,
		}),
		call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		}),
		call(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: screen.NoScript}))
}

// call returns an action that runs a command of the browser's protocol.
func call[P, R any](command cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, command, params)
		return err
	})
}

// record keeps what the console of a developer shows as an error.
func (tab *Tab) record(event any) {
	fault := ""
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		fault = "exception: " + e.ExceptionDetails.Text
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			fault = fmt.Sprintf("console.%s:", e.Type)
			for _, arg := range e.Args {
				fault += " " + string(arg.Value)
			}
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			fault = fmt.Sprintf("%s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL)
		}
	}
	if fault != "" {
		tab.mu.Lock()
		defer tab.mu.Unlock()
		tab.faults = append(tab.faults, fault)
	}
}

// Faults returns the errors in the console since the last call.
func (tab *Tab) Faults() []string {
	tab.mu.Lock()
	defer tab.mu.Unlock()
	faults := tab.faults
	tab.faults = nil
	return faults
}

// do runs actions, and fails the test if one fails or takes too long.
func (tab *Tab) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	tab.t.Helper()
	run(tab, what, chromedp.Steps(actions...))
}

// run runs an action and returns its value. It fails the test if the action fails or takes too long.
func run[T any](tab *Tab, what string, action chromedp.Action[T]) T {
	tab.t.Helper()
	ctx, cancel := context.WithTimeout(tab.ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, action)
	require.NoErrorf(tab.t, err, "%s", what)
	return value
}

// Open opens a URL and returns the status of the answer, after redirects.
func (tab *Tab) Open(url string) (status int64) {
	tab.t.Helper()
	ctx, cancel := context.WithTimeout(tab.ctx, patience)
	defer cancel()
	answer, err := chromedp.RunResponse(ctx, chromedp.Navigate(url))
	require.NoErrorf(tab.t, err, "open %s", url)
	return answer.Status
}

// Click clicks the element of a CSS selector, waits until the page that follows is loaded, and returns its status. It
// reads both from the page, because on a busy machine the browser's events of a load get lost. The click is the
// element's own: one at a place of the screen misses it if the page moves meanwhile.
func (tab *Tab) Click(selector string) (status int64) {
	tab.t.Helper()
	const follows = `window.isLeft || document.readyState !== "complete" ? 0 :
		performance.getEntriesByType("navigation")[0].responseStatus`
	tab.Text(selector)
	Eval[chromedp.Void](tab, fmt.Sprintf("window.isLeft = true; document.querySelector(%q).click()", selector))
	await.NoError(tab.t, "load the page after a click on "+selector, func() (err error) {
		ctx, cancel := context.WithTimeout(tab.ctx, patience)
		defer cancel()
		if status, err = chromedp.Run(ctx, chromedp.Evaluate[int64](follows)); err == nil && status == 0 {
			return errors.New("the page is the same, or is loading")
		}
		return err
	})
	return status
}

// Fill sets the value of the field of a CSS selector.
func (tab *Tab) Fill(selector, text string) {
	tab.t.Helper()
	tab.do("fill "+selector, chromedp.SetValue(chromedp.CSS(selector), text))
}

// Text returns the visible text of the element of a CSS selector, and waits until there is one and the page is parsed.
// Chromium finds and reads the element in one step, which is repeated if another page opens meanwhile.
func (tab *Tab) Text(selector string) string {
	tab.t.Helper()
	ctx, cancel := context.WithTimeout(tab.ctx, patience)
	defer cancel()
	read := fmt.Sprintf(`[document.querySelector(%q)]
		.filter(element => document.readyState !== "loading" && element?.getClientRects().length)
		.map(element => element.innerText)`, selector)
	text := ""
	await.NoError(tab.t, "read "+selector, func() error {
		texts, err := chromedp.Run(ctx, chromedp.Evaluate[[]string](read))
		if err == nil && len(texts) == 0 {
			return errors.New("it is not visible")
		}
		text = strings.Join(texts, "")
		return err
	})
	return text
}

// Eval returns the value of a JavaScript expression in a page.
func Eval[T any](tab *Tab, script string) T {
	tab.t.Helper()
	return run(tab, "evaluate "+script[:min(len(script), 60)], chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
}

// Press clicks the element of a CSS selector that opens no page.
func (tab *Tab) Press(selector string) {
	tab.t.Helper()
	tab.do("press "+selector, chromedp.Click(chromedp.CSS(selector)))
}

// Pasted returns what the page has copied.
func (tab *Tab) Pasted() string {
	tab.t.Helper()
	Eval[bool](tab, `document.body.append(pasted = document.createElement("textarea")), pasted.focus(), true`)
	tab.do("paste", call(input.DispatchKeyEvent, input.DispatchKeyEventParams{
		Type: input.DispatchKeyEventTypeKeyDown, Key: "v", Commands: []string{"paste"},
	}))
	return Eval[string](tab, "pasted.remove(), pasted.value")
}

// Location returns the URL of the page.
func (tab *Tab) Location() string {
	tab.t.Helper()
	return run(tab, "read the location", chromedp.Location())
}

// Path returns the path and the query of the page.
func (tab *Tab) Path() string {
	tab.t.Helper()
	u, err := url.Parse(tab.Location())
	require.NoError(tab.t, err)
	return u.RequestURI()
}

// Screenshot returns a WebP of the whole page, also of what is below the screen, down to a number of its pixels. Scale
// is the number of pixels for each of them.
func (tab *Tab) Screenshot(lowest, scale float64) []byte {
	tab.t.Helper()
	const quality = 45 // texts are sharp
	size := Eval[[]float64](tab, `[innerWidth, document.documentElement.scrollHeight]`)
	clip := page.Viewport{Width: size[0], Height: min(size[1], lowest), Scale: scale}
	return run(tab, "take a screenshot", func(ctx context.Context, t *chromedp.Target) ([]byte, error) {
		beyond, q := true, int64(quality)
		r, err := cdp.Call(ctx, t, page.CaptureScreenshot, page.CaptureScreenshotParams{
			Format: page.CaptureScreenshotFormatWebp, Quality: &q, Clip: &clip, CaptureBeyondViewport: &beyond,
		})
		if err != nil {
			return nil, fmt.Errorf("capture the page: %w", err)
		}
		return r.Data, nil
	})
}

// Print shows the page as on paper, which is as wide as the screen.
func (tab *Tab) Print() {
	tab.t.Helper()
	tab.do("print", call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Media: "print"}))
}

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

// broken returns the words that begin on one line and end on the next. Those of long names and of URLs may.
const broken = `(() => {
	const faults = new Set(), range = document.createRange();
	const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	while (texts.nextNode()) {
		const node = texts.currentNode;
		for (const { index: start, 0: name } of node.data.matchAll(/\S+/g)) {
			for (const { index, 0: word } of name.length > 32 ? [] : name.matchAll(/[\p{L}\p{N}]{2,}/gu)) {
				range.setStart(node, start + index);
				range.setEnd(node, start + index + word.length);
				const tops = [...range.getClientRects()].filter(({ width }) => width > 0).map(({ top }) => Math.round(top));
				if (new Set(tops).size > 1) faults.add("a break inside the word " + word + " of " + node.data.trim().slice(0, 80));
			}
		}
	}
	return [...faults];
})()`

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
// screen, breaks inside words, a focus that cannot be seen or jumps. On a dark screen, which shows what a light one
// does in other colors, it checks the colors of WCAG and the rest.
func (tab *Tab) Audit() (faults []string) {
	tab.t.Helper()
	if !Eval[bool](tab, "window.axe !== undefined") {
		Eval[chromedp.Void](tab, axe(tab.t)+";0")
	}
	which := rules
	if tab.dark {
		which = colors
	}
	faults = Eval[[]string](tab, fmt.Sprintf(wcag, which))
	if pixels := Eval[float64](tab, wide); pixels > 0 {
		faults = append(faults, fmt.Sprintf("the page is %.0f pixels wider than the screen", pixels))
	}
	return slices.Concat(faults, Eval[[]string](tab, broken), Eval[[]string](tab, focusOrder))
}
