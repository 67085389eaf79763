package abuse

import (
	"fmt"
	"slices"
	"time"
)

// Step is a step of the ladder.
type Step uint8

// The steps, the mildest first.
const (
	None     Step = iota
	Warn          // no effect
	Half          // half of each limit
	Tenth         // a tenth of each limit
	ShortBan      // a ban of 5 minutes
	LongBan       // a ban of an hour
)

var stepNames = [...]string{"none", "warn", "half", "tenth", "ban_5m", "ban_1h"}

// StepNames returns the names of all steps, the mildest first.
func StepNames() []string { return slices.Clone(stepNames[:]) }

func (s Step) String() string { return stepNames[s] }

// MarshalText implements encoding.TextMarshaler.
func (s Step) MarshalText() ([]byte, error) { return []byte(stepNames[s]), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Step) UnmarshalText(text []byte) error {
	i := slices.Index(stepNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("step %q: must be one of %v", text, stepNames)
	}
	*s = Step(i)
	return nil
}

// Factor returns what the step multiplies limits by, in thousandths. It is 1000 for a step without an effect, and 0 for
// a ban.
func (s Step) Factor() int64 { return [...]int64{1000, 1000, 500, 100, 0, 0}[s] }

// BanTime returns how long a ban lasts; 0: the step is none.
func (s Step) BanTime() time.Duration {
	return [...]time.Duration{ShortBan: 5 * time.Minute, LongBan: time.Hour}[s]
}

func (s Step) effect() string {
	return [...]string{
		"no penalty", "a warning", "half of each limit", "a tenth of each limit", "a ban of 5 minutes", "a ban of an hour",
	}[s]
}

// move changes the step for one minute, which ends at now. It changes it by one climb at most.
func (s *State) move(flagged bool, most Step, now time.Time) {
	switch {
	case s.Step > most:
		s.enter(most, now)
	case s.Step.BanTime() > 0:
		if !now.Before(s.Since.Add(s.Step.BanTime())) {
			s.enter(Tenth, now)
		}
	case flagged:
		if s.Step == None || now.Sub(s.Since) >= climbAfter {
			s.enter(min(s.next(now), most), now)
		}
	case s.Step > None && now.Sub(s.Since) >= quietAfter && now.Sub(s.FlaggedAt) >= quietAfter:
		s.enter(s.Step-1, now)
	}
}

// next returns the step that a flagged tenant climbs to.
func (s *State) next(now time.Time) Step {
	repeated := !s.EndedAt.IsZero() && now.Sub(s.EndedAt) < memory
	banned := !s.BannedAt.IsZero() && now.Sub(s.BannedAt) < memory
	switch step := s.Step; {
	case step == Tenth && banned:
		return LongBan
	case repeated:
		return min(step+2, LongBan)
	default:
		return min(step+1, LongBan)
	}
}

// enter sets the step, and remembers when penalties and bans ended or began.
func (s *State) enter(step Step, now time.Time) {
	if step == s.Step {
		return
	}
	if step < Half && s.Step >= Half {
		s.EndedAt = now
	}
	if step.BanTime() > 0 {
		s.BannedAt = now
	}
	s.Step, s.Since = step, now
}
