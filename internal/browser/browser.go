// Package browser drives a headless Chromium in tests of web pages. A [Tab] records what a developer would see in the
// console: errors of scripts, violations of the content security policy, and requests that failed. Its audit runs
// axe-core, the accessibility rules of npm's package of that name.
//
// Chromium comes from Debian's package, which is installed if it is missing.
package browser

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/debian"
)

// patience bounds one step of a tab. It is long because tests share a busy machine.
const patience = 2 * time.Minute

// pause is the time between two looks for an element.
const pause = 10 * time.Millisecond

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
		found, missing := debian.Find(name, func() (string, error) { return exec.LookPath(name) })
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
	tab := &Tab{t: t, ctx: ctx, dark: screen.Dark}
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
		call(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: screen.NoScript}),
		call(log.Enable, cdp.Empty{}), call(runtime.Enable, cdp.Empty{}))
	require.NoError(t, chromedp.Listen(ctx, tab.record))
	return tab
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

// load runs an action that opens a page, and returns the status of the answer after redirects.
func (tab *Tab) load(what string, action chromedp.Action[chromedp.Void]) (status int64) {
	tab.t.Helper()
	ctx, cancel := context.WithTimeout(tab.ctx, patience)
	defer cancel()
	answer, err := chromedp.RunResponse(ctx, action)
	require.NoErrorf(tab.t, err, "%s", what)
	return answer.Status
}

// Open opens a URL and returns the status of the answer, after redirects.
func (tab *Tab) Open(url string) (status int64) {
	tab.t.Helper()
	return tab.load("open "+url, chromedp.Navigate(url))
}

// Click clicks the element of a CSS selector, waits until the page that follows is loaded, and returns its status.
func (tab *Tab) Click(selector string) (status int64) {
	tab.t.Helper()
	return tab.load("click "+selector, chromedp.Click(chromedp.CSS(selector)))
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
	every := time.NewTicker(pause)
	defer every.Stop()
	for {
		texts, err := chromedp.Run(ctx, chromedp.Evaluate[[]string](read))
		if err == nil && len(texts) == 1 {
			return texts[0]
		}
		select {
		case <-every.C:
		case <-ctx.Done():
			tab.t.Fatalf("read %s: %v (%v)", selector, ctx.Err(), err)
		}
	}
}

// Eval returns the value of a JavaScript expression in a page.
func Eval[T any](tab *Tab, script string) T {
	tab.t.Helper()
	return run(tab, "evaluate "+script[:min(len(script), 60)], chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
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

// Screenshot returns a PNG of the screen.
func (tab *Tab) Screenshot() []byte {
	tab.t.Helper()
	return run(tab, "take a screenshot", chromedp.CaptureScreenshot())
}
