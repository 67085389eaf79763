// Package abuse scores how tenants send requests, and puts those that look like an attack on a ladder of penalties.
// docs/abuse.md has the signals, which denials count, the baseline, the ladder, and who is exempt. The migration
// 00003_overrides.sql describes the tables.
//
// [Score] is a pure function: from the state of a tenant and what happened in one minute it returns the next
// state and a [Verdict], with the reason in words. It has no clock, and the state is all that it remembers. A baseline
// is an exponentially weighted mean with its variance, updated by
//
//	d = x − mean;  mean += α·d;  variance = (1 − α)·(variance + α·d²)
//
// as in Tony Finch, "Incremental calculation of weighted mean and variance" (University of Cambridge, 2009), with α of
// a half-life of six hours. The n-th value has α of at least 1/n, which makes the first hours a plain mean.
//
// # A run
//
// [Detector.Run] is a chore of the leader, in its session. It scores every minute once, a while after the minute has
// ended: one transaction locks the row of abuse_state, scores the minute, writes the states, the moves and their
// events, and moves the mark. So a new leader continues where the last one ended, and two leaders would work one after
// the other. After a pause it scores the last half hour.
//
// Then it compares each tenant's step with its override, and makes, replaces or ends overrides where they differ. A run
// that fails in between is repaired by the next one. The detector's database role can only execute penalize and
// lift_penalty, so it changes no override that it has not made.
package abuse

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Counts holds requests of a time.
type Counts struct {
	Admitted int64
	Denied   int64 // because a limit had no room
	// Penalized counts requests of Denied that only limits denied which a penalty has lowered.
	Penalized int64
}

func (c Counts) requests() int64 { return c.Admitted + c.Denied }

// excuse returns the counts without the denials that limits without a penalty would have admitted. A penalty of half of
// a limit that admitted 100 requests has denied at most another 100.
func (c Counts) excuse(factor int64) Counts {
	if factor <= 0 || factor >= 1000 {
		return c
	}
	own := min(c.Penalized, c.Admitted*(1000-factor)/factor)
	return Counts{Admitted: c.Admitted + own, Denied: c.Denied - own, Penalized: c.Penalized - own}
}

func (c Counts) share() float64 {
	if c.Denied == 0 {
		return 0
	}
	return float64(c.Denied) / float64(c.requests())
}

// Observation holds what happened to the requests of a tenant in a minute, and in the Window that it ends.
type Observation struct {
	Minute, Window Counts
	// Before are the minutes before Minute, the last one first.
	Before [2]Counts
	// Users, Addresses and Credentials are the different ones that were denied in Window.
	Users, Addresses, Credentials int64
	// Unavailable counts requests of the minute that were denied because a store did not answer: our fault.
	Unavailable int64
	// Factor is the penalty in force, in thousandths; 1000: none.
	Factor int64
	// Most bounds the step that the tenant may be on. None: it is exempt.
	Most Step
}

// State is what is remembered of a tenant. The zero value is that of a new one.
type State struct {
	Step      Step      `json:"step"`
	Since     time.Time `json:"since,omitzero"`      // when it came to the step
	FlaggedAt time.Time `json:"flagged_at,omitzero"` // the last time
	EndedAt   time.Time `json:"ended_at,omitzero"`   // the last penalty
	BannedAt  time.Time `json:"banned_at,omitzero"`  // the last time
	FaultAt   time.Time `json:"fault_at,omitzero"`   // when a store that did not answer last denied its requests

	Demand      Baseline `json:"demand"`      // requests of a minute
	Users       Baseline `json:"users"`       // denied in Window
	Addresses   Baseline `json:"addresses"`   // likewise
	Credentials Baseline `json:"credentials"` // likewise
}

// Forgive returns the state without its place on the ladder, and without what makes the next climb faster.
func (s State) Forgive() State {
	return State{Demand: s.Demand, Users: s.Users, Addresses: s.Addresses, Credentials: s.Credentials}
}

// cut cuts times that are after now, because the clock was set back: no step would end before they have come.
func (s *State) cut(now time.Time) {
	for _, at := range [...]*time.Time{&s.Since, &s.FlaggedAt, &s.EndedAt, &s.BannedAt, &s.FaultAt} {
		if at.After(now) {
			*at = now
		}
	}
}

// Signal names what flags a tenant.
type Signal string

// The signals, as the metric names them.
const (
	DeniedShare Signal = "denied_share"
	Spike       Signal = "spike"
	Breadth     Signal = "breadth"
)

// Flag is a signal with its numbers.
type Flag struct {
	Signal Signal
	Text   string
}

// Verdict is the outcome of a minute.
type Verdict struct {
	Flags    []Flag // none: the minute was unsuspicious
	From, To Step
	Most     Step // that the tenant may be on
}

// Flagged reports whether a signal flagged the tenant.
func (v Verdict) Flagged() bool { return len(v.Flags) > 0 }

// Moved reports whether the tenant has come to another step.
func (v Verdict) Moved() bool { return v.From != v.To }

// Reason returns in words why the tenant is on its step.
func (v Verdict) Reason() string {
	var texts []string
	for _, f := range v.Flags {
		texts = append(texts, f.Text)
	}
	switch evidence := strings.Join(texts, "; "); {
	case v.Flagged():
		return fmt.Sprintf("%s, because %s", v.To.effect(), evidence)
	case v.From.BanTime() > 0 && v.To == Tenth:
		return fmt.Sprintf("%s, because %s is over", v.To.effect(), v.From.effect())
	case v.To < v.From && v.To == v.Most:
		return fmt.Sprintf("%s after %s, because it is exempt", v.To.effect(), v.From.effect())
	case v.To < v.From:
		return fmt.Sprintf("%s after %s, because it went without a flag", v.To.effect(), v.From.effect())
	}
	return "unsuspicious"
}

// Score returns the state after a minute, which ends at now, and the verdict about it. deniedShare is the share from
// which DeniedShare flags.
func Score(s State, o Observation, deniedShare float64, now time.Time) (State, Verdict) {
	s.cut(now)
	v := Verdict{From: s.Step, Most: o.Most}
	window := o.Window.excuse(o.Factor)
	if o.Unavailable*minFaultShare >= o.Minute.requests() && o.Unavailable > 0 {
		s.FaultAt = now
	}
	isRecent := now.Before(s.FaultAt.Add(faultGrace))
	if o.Most > None && s.Step.BanTime() == 0 && !isRecent {
		v.Flags = signals(&s, &o, window, deniedShare)
	}
	if v.Flagged() {
		s.FlaggedAt = now
	}
	isCalm := !v.Flagged() && s.Step == None && !isRecent && window.share() <= learnShare
	if isCalm && o.Minute.requests() > 0 {
		s.learn(&o)
	}
	s.move(v.Flagged(), o.Most, now)
	v.To = s.Step
	return s, v
}

// minFaultShare is the inverse of the share of requests that our fault must have denied to excuse what follows.
const minFaultShare = 10

func (s *State) learn(o *Observation) {
	s.Demand.learn(float64(o.Minute.requests()))
	for _, part := range breadths(s, o) {
		part.usual.learn(float64(part.count))
	}
}

// breadth is a number of different names that were denied, with its baseline.
type breadth struct {
	name  string
	count int64
	usual *Baseline
}

func breadths(s *State, o *Observation) [3]breadth {
	return [...]breadth{
		{"users", o.Users, &s.Users},
		{"addresses", o.Addresses, &s.Addresses},
		{"credentials", o.Credentials, &s.Credentials},
	}
}

// signals returns the signals of a window. Each of its last three minutes must have its part of minDenied, and the
// share of denials. A burst of up to a minute lies in two of them at most, wherever it begins.
func signals(s *State, o *Observation, window Counts, deniedShare float64) (flags []Flag) {
	share := window.share()
	for _, minute := range [...]Counts{o.Minute, o.Before[0], o.Before[1]} {
		minute = minute.excuse(o.Factor)
		if minute.Denied < minDenied/int64(Window/time.Minute) {
			return nil
		}
		share = min(share, minute.share())
	}
	if window.Denied < minDenied {
		return nil
	}
	if share >= deniedShare {
		flags = append(flags, Flag{DeniedShare, fmt.Sprintf(
			"%d of its %d requests in %d minutes were denied (%.0f %%, a flag from %.0f %%)",
			window.Denied, window.requests(), int(Window.Minutes()), 100*window.share(), 100*deniedShare)})
	}
	demand := float64(o.Window.requests()) / Window.Minutes()
	if s.Demand.Learned >= warmUp && share >= spikeShare &&
		s.Demand.exceeds(demand, spikeFactor, spikeDeviations) {
		flags = append(flags, Flag{Spike, fmt.Sprintf(
			"%.0f requests a minute are %.1f times its usual %.0f (deviation %.0f), and %.0f %% were denied",
			demand, demand/max(s.Demand.Mean, 1), s.Demand.Mean, s.Demand.deviation(), 100*share)})
	}
	if share < breadthShare {
		return flags
	}
	for _, part := range breadths(s, o) {
		if part.count >= breadthMin && part.usual.Learned >= warmUp &&
			part.usual.exceeds(float64(part.count), breadthFactor, breadthDeviations) {
			flags = append(flags, Flag{Breadth, fmt.Sprintf(
				"about %d different %s were denied in %d minutes, usually %.0f, and %.0f %% of its requests",
				part.count, part.name, int(Window.Minutes()), part.usual.Mean, 100*share)})
		}
	}
	return flags
}

// Baseline is an exponentially weighted mean with its variance. The zero value has learned nothing.
type Baseline struct {
	Mean     float64 `json:"mean"`
	Variance float64 `json:"variance"`
	Learned  int64   `json:"learned"` // values
}

// clipDeviations bounds what a baseline learns of a value above the mean, once it has learned enough.
const clipDeviations = 3

// learn updates the baseline by a value. The weight of a value halves after halfLife further ones.
func (b *Baseline) learn(x float64) {
	if b.Learned >= warmUp {
		x = min(x, b.Mean+clipDeviations*b.deviation())
	}
	b.Learned++
	alpha := max(1-math.Exp2(-1.0/halfLife), 1/float64(b.Learned))
	d := x - b.Mean
	b.Mean += alpha * d
	b.Variance = (1 - alpha) * (b.Variance + alpha*d*d)
}

// deviation returns the standard deviation. It is at least that of a Poisson process of this mean, so a tenant that
// always sends the same number has room to vary.
func (b *Baseline) deviation() float64 { return math.Sqrt(max(b.Variance, b.Mean, 1)) }

// exceeds reports whether a value is above the mean by a factor and by a number of deviations.
func (b *Baseline) exceeds(x, factor, deviations float64) bool {
	return x >= factor*b.Mean && x >= b.Mean+deviations*b.deviation()
}

// Window is the time over which shares and distinct names are counted.
const Window = 5 * time.Minute

// DefaultDeniedShare is the share of the requests in Window, from which DeniedShare flags.
const DefaultDeniedShare = 0.8

// The other thresholds.
const (
	minDenied = 300 // requests denied in Window, below which nothing is flagged; a fifth in each of three minutes

	spikeFactor, spikeDeviations = 4, 6 // times the baseline, and above it
	spikeShare                   = 0.5  // of the requests in Window denied

	breadthMin                       = 100  // different users, addresses or credentials denied in Window
	breadthFactor, breadthDeviations = 5, 6 // times the baseline, and above it
	breadthShare                     = 0.3  // of the requests in Window denied

	learnShare = 0.1 // of the requests in Window denied, above which a minute is not learned
	warmUp     = 60  // minutes to learn before a baseline flags
	halfLife   = 360 // minutes

	climbAfter = Window           // on a step, before a flag leads to the next one
	quietAfter = 15 * time.Minute // without a flag, before a step down
	memory     = 24 * time.Hour   // for which a penalty makes the next climb faster
	faultGrace = 15 * time.Minute // without a flag, after a store that did not answer denied a tenth of the requests
)
