package portal

import (
	"encoding/hex"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const logo = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 4 1"><rect width="4" height="1" fill="#c0392b"/></svg>`

// branded sets a brand with an accent.
func branded(t *testing.T, accent string) func(*Options) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "logo.SVG")
	require.NoError(t, os.WriteFile(file, []byte(logo), 0o600))
	return func(o *Options) {
		require.NoError(t, o.Brand.SetName(" <i>Acme</i> APIs "))
		require.NoError(t, o.Brand.SetAccent(accent))
		require.NoError(t, o.Brand.SetSupport("https://help.example/?a=1&b"))
		require.NoError(t, o.Brand.ReadLogo(file))
	}
}

func TestPagesHaveTheBrandOfTheOperatorUnderTheSamePolicy(t *testing.T) {
	t.Parallel()
	w := open(t, branded(t, "#ffd500"))
	for _, b := range []*browser{w.browser(), w.signedIn(acmeSecret), w.signedIn(adminSecret)} {
		a := b.get("/portal/nowhere")
		w.want(a, http.StatusNotFound, "&lt;i&gt;Acme&lt;/i&gt; APIs</title>", `href="https://help.example/?a=1&amp;b"`)
		require.Equal(t, contentPolicy, a.Header.Get("Content-Security-Policy"))
		for pattern, kind := range map[string]string{
			`/portal/assets/[^"]+/logo-[0-9a-f]{12}\.svg`:  "image/svg+xml",
			`/portal/assets/[^"]+/brand-[0-9a-f]{12}\.css`: "text/css",
		} {
			path := regexp.MustCompile(pattern).FindString(a.text)
			got := w.want(b.get(path), http.StatusOK)
			if !strings.HasPrefix(got.Header.Get("Content-Type"), kind) || kind == "image/svg+xml" && got.text != logo {
				t.Errorf("%s is %s", path, got.Header.Get("Content-Type"))
			}
		}
	}
	w.missing(open(t).browser().get(signInPath), "brand-", "logo-", "<footer>")
}

func TestABrandNeverBecomesMarkup(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "logo.svg")
	require.NoError(t, os.WriteFile(file, []byte(`<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>`), 0o600))
	for _, site := range []string{"https://help.example/", "https://help.example/?", "mailto:"} {
		support := site + hostile
		w := open(t, func(o *Options) {
			require.NoError(t, o.Brand.SetName(hostile))
			require.NoError(t, o.Brand.ReadLogo(file))
			require.NoError(t, o.Brand.SetSupport(support))
		})
		for _, b := range []*browser{w.browser(), w.signedIn(acmeSecret), w.signedIn(adminSecret)} {
			a := w.want(b.get("/portal/nowhere"), http.StatusNotFound, "&lt;script&gt;", "<footer>")
			w.missing(a, "<script>alert", "onerror=alert(2)>", "ZgotmplZ")
			got := b.get(regexp.MustCompile(`/portal/assets/[^"]+/logo-[0-9a-f]{12}\.svg`).FindString(a.text))
			if w.want(got, http.StatusOK); got.Header.Get("Content-Security-Policy") != contentPolicy {
				t.Errorf("opened by itself, the logo may run scripts: %v", got.Header)
			}
		}
	}
}

func TestAnyAccentCanBeRead(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"#ffffff", "#000000", "#ffd500", "#1f5fbf", "#00ff00", "#808080", "#ff0000", "#0000ff"} {
		var b Brand
		require.NoError(t, b.SetAccent(text))
		colors := regexp.MustCompile(`--accent: #([0-9a-f]{6})`).FindAllStringSubmatch(b.style(), -1)
		require.Len(t, colors, 2)
		for i, page := range [][3]byte{lightPage, darkPage} {
			color, err := hex.DecodeString(colors[i][1])
			require.NoError(t, err)
			if got := contrast([3]byte(color), page); got < leastContrast {
				t.Errorf("%s becomes #%s, whose contrast is %.2f", text, colors[i][1], got)
			}
		}
	}
	if got := contrast([3]byte{}, [3]byte{255, 255, 255}); got < 20.99 || got > 21.01 {
		t.Errorf("the contrast of black on white is %v", got)
	}
}

func TestABrandThatCannotBeShownIsAnError(t *testing.T) {
	t.Parallel()
	var b Brand
	file := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	for want, err := range map[string]error{
		"must be a color such as":      b.SetAccent("#12345"),
		"must be a color such as #":    b.SetAccent("red"),
		"must be an address such":      b.SetSupport("javascript:alert(1)"),
		"must be an address such as":   b.SetSupport("help"),
		"must have 1 to 64 bytes":      b.SetName(" "),
		"must be a file whose name":    b.ReadLogo(file("logo.gif", "x")),
		"must have 1 to 262144 bytes,": b.ReadLogo(file("logo.png", "")),
		"no such file":                 b.ReadLogo("nowhere.svg"),
	} {
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, b.SetSupport("mailto:help@example.com"))
}
