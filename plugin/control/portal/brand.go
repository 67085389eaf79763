package portal

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Brand is how the pages of an operator look. The zero value is the program's own.
type Brand struct {
	Name    string   // in place of "Rate limits"
	Logo    []byte   // an image; nil: none
	Format  string   // of Logo, as its file name ends: .svg
	Accent  *[3]byte // the color of buttons, links and graphs, as red, green and blue; nil: the program's own
	Support string   // where tenants ask for help: an https, http or mailto address; "": nowhere
}

// maxLogo bounds a logo, in bytes.
const maxLogo = 256 << 10

var logoFormats = []string{".svg", ".png", ".webp", ".jpg"}

// ReadLogo reads the logo from a file.
func (b *Brand) ReadLogo(file string) error {
	b.Format = strings.ToLower(filepath.Ext(file))
	if !slices.Contains(logoFormats, b.Format) {
		return fmt.Errorf("must be a file whose name ends in one of %s", strings.Join(logoFormats, " "))
	}
	text, err := os.ReadFile(file)
	if err == nil && (len(text) == 0 || len(text) > maxLogo) {
		err = fmt.Errorf("must have 1 to %d bytes, got %d", maxLogo, len(text))
	}
	b.Logo = text
	return err
}

// SetName sets the name.
func (b *Brand) SetName(text string) error {
	if b.Name = strings.TrimSpace(text); b.Name == "" || len(b.Name) > 64 {
		return errors.New("must have 1 to 64 bytes")
	}
	return nil
}

// SetAccent sets the color from a text such as #1f5fbf.
func (b *Brand) SetAccent(text string) error {
	digits, found := strings.CutPrefix(text, "#")
	color, err := hex.DecodeString(digits)
	if !found || err != nil || len(color) != len(b.Accent) {
		return errors.New("must be a color such as #1f5fbf")
	}
	b.Accent = (*[3]byte)(color)
	return nil
}

// SetSupport sets the address for help.
func (b *Brand) SetSupport(text string) error {
	at, err := url.Parse(text)
	if err != nil || !slices.Contains([]string{"https", "http", "mailto"}, at.Scheme) || at.Host+at.Opaque == "" {
		return errors.New("must be an address such as https://example.com/help or mailto:help@example.com")
	}
	b.Support = text
	return nil
}

// files returns what pages load of the brand, by names that contain a hash of the content.
func (b *Brand) files() (logo, style string, files map[string][]byte) {
	files = map[string][]byte{}
	add := func(name, format string, content []byte) string {
		sum := sha256.Sum256(content)
		name += "-" + hex.EncodeToString(sum[:6]) + format
		files[name] = content
		return name
	}
	if b.Logo != nil {
		logo = add("logo", b.Format, b.Logo)
	}
	if b.Accent != nil {
		style = add("brand", ".css", []byte(b.style()))
	}
	return logo, style, files
}

// The backgrounds that the accent is on, in the light and in the dark scheme, of style.css: of these the ones with the
// least contrast.
var (
	lightPage = [3]byte{0xe3, 0xe9, 0xf6}
	darkPage  = [3]byte{0x26, 0x32, 0x4a}
)

// style returns the colors of both schemes. Text of that color, and text on it, has the contrast of all others: the
// accent becomes as much darker, or lighter, as that needs.
func (b *Brand) style() string {
	const rule = ":root { --accent: %[1]s; --link: %[1]s; }\n"
	return fmt.Sprintf(rule, readable(*b.Accent, lightPage, 0)) + "@media (prefers-color-scheme: dark) {\n" +
		fmt.Sprintf(rule, readable(*b.Accent, darkPage, math.MaxUint8)) + "}\n"
}

// leastContrast is what WCAG 2 asks of text.
const leastContrast = 4.5

// readable returns a color as CSS, mixed with black (0) or white (255) until it has enough contrast to a background.
func readable(color, page [3]byte, with float64) string {
	mixed := color
	for share := 0.0; share <= 1 && contrast(mixed, page) < leastContrast; share += .02 {
		for i, c := range color {
			mixed[i] = byte(float64(c)*(1-share) + with*share)
		}
	}
	return "#" + hex.EncodeToString(mixed[:])
}

// contrast returns the contrast of two colors by WCAG 2, from 1 to 21.
func contrast(a, b [3]byte) float64 {
	light, dark := luminance(a), luminance(b)
	return (max(light, dark) + .05) / (min(light, dark) + .05)
}

func luminance(color [3]byte) (sum float64) {
	for i, weight := range [...]float64{.2126, .7152, .0722} {
		c := float64(color[i]) / math.MaxUint8
		if c <= .04045 {
			sum += weight * c / 12.92
		} else {
			sum += weight * math.Pow((c+.055)/1.055, 2.4)
		}
	}
	return sum
}
