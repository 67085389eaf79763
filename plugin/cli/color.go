package cli

import (
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Marks of colored text within a page. They are in Unicode's private use area, which plainText replaces, so no name can
// hold one. A screen writes them as control sequences, or leaves them out.
const (
	redMark    = '\ue000'
	yellowMark = '\ue001'
	endMark    = '\ue002'
)

var (
	withColor = strings.NewReplacer(
		string(redMark), "\x1b[31m", string(yellowMark), "\x1b[33m", string(endMark), "\x1b[0m",
	)
	withoutColor = strings.NewReplacer(string(redMark), "", string(yellowMark), "", string(endMark), "")
)

// colored is a cell of a table that stands out on a terminal.
type colored struct {
	cell any
	mark rune
}

// red marks a state that harms: denied, banned, degraded, a fault. Cells of other states stay plain.
func red(cell any, when bool) any { return marked(cell, redMark, when) }

// yellow marks a state that is easily overlooked: a policy in shadow, a node that lags behind, a warning.
func yellow(cell any, when bool) any { return marked(cell, yellowMark, when) }

func marked(cell any, mark rune, when bool) any {
	if !when {
		return cell
	}
	return colored{cell, mark}
}

// modeCell returns the mode of a policy, which stands out where the policy does not deny.
func modeCell(mode string) any { return yellow(mode, mode == "shadow" || mode == "log") }

// kindCell returns the kind of an override, which stands out where it denies all requests.
func kindCell(kind string) any { return red(kind, kind == schema.KindBan) }

// isMark reports whether a rune marks colored text.
func isMark(r rune) bool { return redMark <= r && r <= endMark }

// cellWidth returns how many columns a cell takes.
func cellWidth(cell string) int {
	width := utf8.RuneCountInString(cell)
	for _, r := range cell {
		if isMark(r) {
			width--
		}
	}
	return width
}

// wantsColor reports whether output is to be colored: it goes to a terminal that shows colors, and NO_COLOR
// (https://no-color.org) is not set.
func wantsColor(to io.Writer, getenv func(string) string) bool {
	return screen{to: to}.isTerminal() && allowsColor(getenv("NO_COLOR"), getenv("TERM"))
}

func allowsColor(noColor, terminal string) bool {
	return noColor == "" && terminal != "" && terminal != "dumb"
}

// isTerminal reports whether the screen is a terminal, and not a file or a pipe.
func (s screen) isTerminal() bool {
	file, ok := s.to.(*os.File)
	if !ok {
		return false
	}
	about, err := file.Stat()
	return err == nil && about.Mode()&os.ModeCharDevice != 0
}
