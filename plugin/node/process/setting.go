package process

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"
)

// ParseDuration parses a duration above 0.
func ParseDuration(text string, to *time.Duration) error {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return errors.New("must be a duration above 0, such as 250ms or 1s")
	}
	*to = d
	return nil
}

// ParseInt parses a whole number of at least lowest.
func ParseInt(text string, lowest int, to *int) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < lowest {
		return fmt.Errorf("must be a whole number, at least %d", lowest)
	}
	*to = n
	return nil
}

// ParseLevel parses the level of a log.
func ParseLevel(text string, to *slog.Level) error {
	if err := to.UnmarshalText([]byte(text)); err != nil {
		return errors.New("must be debug, info, warn or error")
	}
	return nil
}

// ParseSwitch parses on or off.
func ParseSwitch(text string, to *bool) error {
	if text != "on" && text != "off" {
		return errors.New("must be on or off")
	}
	*to = text == "on"
	return nil
}
