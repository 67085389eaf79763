package browser

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

const clean = `<!doctype html><html lang="en"><head><title>A page</title><link rel="icon" href="data:,">
	<meta name="viewport" content="width=device-width"></head><body><main><h1>A page</h1>
	<form action="/next"><label for="name">Name</label> <input id="name" name="name"> <button>Go</button></form>
	</main></body></html>`

// serve returns the URL of a server of pages by their paths.
func serve(t *testing.T, pages map[string]string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page, ok := pages[r.URL.Path]
		if !ok {
			http.Error(w, "there is no such page", http.StatusNotFound)
			return
		}
		if strings.HasSuffix(r.URL.Path, ".css") {
			w.Header().Set("Content-Type", "text/css")
		}
		w.Header().Set("Content-Security-Policy", "default-src 'self'; img-src data:")
		fmt.Fprint(w, page)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestAFormIsFilledAndSentAndFaultsAreReported(t *testing.T) {
	url := serve(t, map[string]string{
		"/":     clean,
		"/next": strings.Replace(clean, "<main>", `<main><script>alert(1)</script>`, 1),
		"/poor": `<html><body style="color:red"><img src="data:,"><input><p style="color:#ccc">pale</p>`,
	})
	tab := Start(t).Tab(t, Phone)
	if status := tab.Open(url); status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	if faults := append(tab.Faults(), tab.Audit()...); len(faults) > 0 {
		t.Errorf("a clean page has faults: %q", faults)
	}
	tab.Fill("#name", "Ann")
	if status := tab.Click("button"); status != http.StatusOK || tab.Path() != "/next?name=Ann" {
		t.Errorf("%d %s", status, tab.Path())
	}
	if faults := strings.Join(tab.Faults(), "\n"); !strings.Contains(faults, "Content Security Policy") {
		t.Errorf("an inline script has no fault: %s", faults)
	}
	if status := tab.Open(url + "/none"); status != http.StatusNotFound {
		t.Errorf("status %d of a page that does not exist", status)
	}
	tab.Open(url + "/poor")
	faults := strings.Join(tab.Audit(), "\n")
	for _, rule := range []string{"image-alt", "label", "html-has-lang", "document-title"} {
		if !strings.Contains(faults, rule+":") {
			t.Errorf("the audit does not report %s: %s", rule, faults)
		}
	}
}

func TestADarkSchemeIsAuditedForItsColors(t *testing.T) {
	url := serve(t, map[string]string{
		"/": strings.Replace(clean, "<main>", `<link rel="stylesheet" href="/dark.css"><main><img src="data:,">
			<p>A text around <a href="/next">a link</a> that is in it.</p>`, 1),
		"/dark.css": `@media (prefers-color-scheme: dark) {
			body { background: #ddd } h1 { color: #eee } p { color: #111 } a { color: #222; text-decoration: none }
		}`,
	})
	chromium := Start(t)
	for screen, want := range map[Screen][]string{
		Desktop: {"image-alt"}, Dark: {"color-contrast", "link-in-text-block"},
	} {
		tab := chromium.Tab(t, screen)
		tab.Open(url)
		var rules []string
		for _, fault := range tab.Audit() {
			rule, _, _ := strings.Cut(fault, ":")
			rules = append(rules, rule)
		}
		slices.Sort(rules)
		if rules = slices.Compact(rules); !slices.Equal(rules, want) {
			t.Errorf("%s: the audit reports %q, want %q", screen.Name, rules, want)
		}
	}
}

func TestWordsThatBreakAndPagesThatAreTooWideAreFaults(t *testing.T) {
	url := serve(t, map[string]string{
		"/": strings.Replace(clean, "<main>", `<link rel="stylesheet" href="/narrow.css"><main><p>enforced</p>
			<p>cyberdyne-systems</p><p>https://example.com/a-long-address-of-a-webhook</p><pre>wide</pre>`, 1),
		"/narrow.css": `p { width: 3em; overflow-wrap: anywhere } p + p { width: 6em } pre { width: 500px }
			@media print { p { width: auto } pre { display: none } }`,
	})
	tab := Start(t).Tab(t, Phone)
	tab.Open(url)
	faults := strings.Join(tab.Audit(), "\n")
	for _, want := range []string{"a break inside the word enforced", "pixels wider than the screen"} {
		if strings.Count(faults, want) != 1 || strings.Count(faults, "a break inside") != 1 {
			t.Errorf("the audit reports %q, want %q", faults, want)
		}
	}
	tab.Print()
	if faults := tab.Audit(); len(faults) > 0 {
		t.Errorf("faults on paper: %q", faults)
	}
}

func TestAnElementThatThePageReplacesIsFoundAgain(t *testing.T) {
	tab := Start(t).Tab(t, Desktop)
	tab.Open(serve(t, map[string]string{"/": clean}))
	Eval[int](tab, `setInterval(() => { document.querySelector("main").innerHTML = "<p><i>now</i></p>" }, 0)`)
	for range 200 {
		if text := tab.Text("i"); text != "now" {
			t.Fatalf("text %q", text)
		}
	}
}

func TestTheTextOfAPageThatArrivesInPartsIsReadWhole(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "<!doctype html><title>A page</title><p>")
		if r.URL.Path == "/slow" {
			fmt.Fprint(w, "half <i>", strings.Repeat("\n", 4096))
			w.(http.Flusher).Flush()
			time.Sleep(500 * time.Millisecond)
			fmt.Fprint(w, "whole</i>")
		}
	}))
	t.Cleanup(server.Close)
	tab := Start(t).Tab(t, Desktop)
	tab.Open(server.URL)
	Eval[string](tab, `location.href = "/slow"`)
	if text := tab.Text("i"); text != "whole" {
		t.Errorf("text %q", text)
	}
}
