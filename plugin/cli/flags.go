package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// defaultWait is how long --wait waits without a duration, as ?wait of the REST API does.
const defaultWait = api.DefaultWait

// valueFlag has what a flag need not say of itself: the usage names its value and its default.
type valueFlag struct{}

// String implements pflag.Value.
func (valueFlag) String() string { return "" }

// Type implements pflag.Value.
func (valueFlag) Type() string { return "value" }

// textFlag is a text as a flag.
type textFlag struct {
	valueFlag
	to           *string
	emptyProblem string // the fault of an empty text; "": it may be empty
}

// Type implements pflag.Value.
func (*textFlag) Type() string { return "string" }

// Set implements pflag.Value.
func (f *textFlag) Set(text string) error {
	if text == "" && f.emptyProblem != "" {
		return errors.New(f.emptyProblem)
	}
	*f.to = text
	return nil
}

// spanFlag is a length of time as a flag: 90s, 15m, 2h, 30d.
type spanFlag struct {
	valueFlag
	length time.Duration
}

// maxSpan is the longest window of a limit, and more than an end should lie ahead.
const maxSpan = 100 * 366 * 24 * time.Hour

// Set implements pflag.Value.
func (s *spanFlag) Set(text string) error {
	length, err := time.ParseDuration(text)
	if days, isDays := strings.CutSuffix(text, "d"); isDays {
		var n int64
		if n, err = strconv.ParseInt(days, 10, 32); err == nil {
			length = time.Duration(min(n, int64(maxSpan/time.Hour))) * 24 * time.Hour
		}
	}
	if err != nil || length <= 0 || length > maxSpan {
		return errors.New("must be a duration above 0, such as 90s, 15m, 2h or 30d")
	}
	s.length = length
	return nil
}

// windowFlag is the length of a limit's window as a flag: a number of seconds, or a span of whole seconds.
type windowFlag struct{ seconds int64 }

// Set reads the text of the flag.
func (w *windowFlag) Set(text string) error {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n > 0 {
		w.seconds = n
		return nil
	}
	var s spanFlag
	if err := s.Set(text); err != nil || s.length%time.Second != 0 {
		return errors.New("must be a number of seconds above 0, or a duration of whole seconds, such as 60s, 24h or 30d")
	}
	w.seconds = int64(s.length / time.Second)
	return nil
}

// instantFlag is a time as a flag.
type instantFlag struct {
	valueFlag
	at time.Time
}

// Set implements pflag.Value.
func (i *instantFlag) Set(text string) (err error) {
	i.at, err = schema.ParseTime(text)
	return err
}

// pastFlag is an instant as a flag, or how long ago it was.
type pastFlag struct {
	instantFlag
	now func() time.Time
}

// Set implements pflag.Value.
func (p *pastFlag) Set(text string) error {
	var ago spanFlag
	if err := ago.Set(text); err == nil {
		p.at = p.now().Add(-ago.length)
		return nil
	}
	if err := p.instantFlag.Set(text); err != nil {
		return errors.New(schema.TimeForm + ", or a duration ago such as 2h or 30d")
	}
	return nil
}

// wholeFlag defines the flag of a whole number from least to most.
func (c *call) wholeFlag(to *int, least, most int, name, usage string) {
	c.flags.Func(name, usage, func(text string) error {
		if err := process.ParseInt(text, 0, to); err != nil || *to < least || *to > most {
			return fmt.Errorf("must be a whole number from %d to %d", least, most)
		}
		return nil
	})
}

// countFlag is a whole number above 0 as a flag. The zero value is absent.
type countFlag struct{ n int64 }

// Set reads the text of the flag.
func (c *countFlag) Set(text string) error {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 {
		return errors.New("must be a whole number above 0")
	}
	c.n = n
	return nil
}

// formatFactor writes thousandths as thousandths reads them.
func formatFactor(thousandths int64) string {
	text := fmt.Sprintf("%d.%03d", thousandths/1000, thousandths%1000)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}
