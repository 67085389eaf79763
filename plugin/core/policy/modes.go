package policy

import "github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"

// Mode selects what a policy does with a denial.
type Mode uint8

// The modes. The zero value enforces.
const (
	Enforce Mode = iota
	Shadow       // decide and record, never deny
	Log          // like Shadow, and log each would-deny
)

func (m Mode) String() string { return [...]string{"enforce", "shadow", "log"}[m] }

// FailMode selects what a policy does while the central store does not answer.
type FailMode uint8

// The fail modes. The zero value limits locally.
const (
	FailLocal FailMode = iota
	FailOpen
	FailClosed
)

func (f FailMode) String() string { return [...]string{"local", "open", "closed"}[f] }

// Accuracy selects whether nodes may lease tokens of a policy's buckets ([Policy.Leasable]).
type Accuracy uint8

// The accuracies. The zero value allows leases.
const (
	Leased Accuracy = iota
	Exact           // every request is counted in the central store
)

func (a Accuracy) String() string { return [...]string{"leased", "exact"}[a] }

// Modes holds what a policy does: with a denial, while the central store does not answer, and with leases.
type Modes struct {
	Mode     Mode
	FailMode FailMode
	Accuracy Accuracy
}

// ModesOf returns the modes of a config as a whole: a policy may have others.
func ModesOf(config *schema.Config) Modes {
	return Modes{parseMode(config.Mode), parseFailMode(config.FailMode), parseAccuracy(config.Accuracy)}
}

func (p *Policy) modes() Modes { return Modes{p.Mode, p.FailMode, p.Accuracy} }

func parseMode(name string) Mode {
	switch name {
	case schema.ModeShadow:
		return Shadow
	case schema.ModeLog:
		return Log
	}
	return Enforce
}

func parseFailMode(name string) FailMode {
	switch name {
	case schema.FailOpen:
		return FailOpen
	case schema.FailClosed:
		return FailClosed
	}
	return FailLocal
}

func parseAccuracy(name string) Accuracy {
	if name == schema.AccuracyExact {
		return Exact
	}
	return Leased
}
