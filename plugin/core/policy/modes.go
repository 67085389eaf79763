package policy

import (
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Mode selects what a policy does with a denial.
type Mode uint8

// The modes. The zero value enforces.
const (
	Enforce Mode = iota
	Shadow       // decide and record, never deny
	Log          // like Shadow, and log each would-deny
)

var modeNames = [...]string{schema.ModeEnforce, schema.ModeShadow, schema.ModeLog}

func (m Mode) String() string { return modeNames[m] }

// FailMode selects what a policy does while the central store does not answer.
type FailMode uint8

// The fail modes. The zero value limits locally.
const (
	FailLocal FailMode = iota
	FailOpen
	FailClosed
)

var failModeNames = [...]string{schema.FailLocal, schema.FailOpen, schema.FailClosed}

func (f FailMode) String() string { return failModeNames[f] }

// Accuracy selects whether nodes may lease tokens of a policy's buckets ([Policy.Leasable]).
type Accuracy uint8

// The accuracies. The zero value allows leases.
const (
	Leased Accuracy = iota
	Exact           // every request is counted in the central store
)

var accuracyNames = [...]string{schema.AccuracyLeased, schema.AccuracyExact}

func (a Accuracy) String() string { return accuracyNames[a] }

// Modes holds what a policy does: with a denial, while the central store does not answer, and with leases.
type Modes struct {
	Mode     Mode
	FailMode FailMode
	Accuracy Accuracy
}

// ModesOf returns the modes of a config as a whole: a policy may have others.
func ModesOf(config *schema.Config) Modes {
	return Modes{
		parseEnum[Mode](modeNames[:], config.Mode), parseEnum[FailMode](failModeNames[:], config.FailMode),
		parseEnum[Accuracy](accuracyNames[:], config.Accuracy),
	}
}

func (p *Policy) modes() Modes { return Modes{p.Mode, p.FailMode, p.Accuracy} }

// parseEnum returns the value with a name, or the zero value if there is none.
func parseEnum[T ~uint8](names []string, name string) T { return T(max(slices.Index(names, name), 0)) }
