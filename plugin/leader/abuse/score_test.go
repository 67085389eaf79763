package abuse

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var start = time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC)

// player plays minutes to a tenant's score.
type player struct {
	state  State
	last   Verdict
	now    time.Time
	recent []Counts
	steps  []string // each move, with the minute of the run
	most   Step
}

func newPlayer() *player { return &player{now: start, most: LongBan} }

// minute plays a minute. The penalty in force is that of the step.
func (p *player) minute(o Observation) Verdict {
	p.now = p.now.Add(time.Minute)
	for i := range o.Before {
		if n := len(p.recent) - 1 - i; n >= 0 {
			o.Before[i] = p.recent[n]
		}
	}
	p.recent = append(p.recent, o.Minute)
	p.recent = p.recent[max(0, len(p.recent)-int(Window/time.Minute)):]
	o.Window = Counts{}
	for _, c := range p.recent {
		o.Window.Admitted += c.Admitted
		o.Window.Denied += c.Denied
		o.Window.Penalized += c.Penalized
	}
	if o.Factor == 0 {
		o.Factor = 1000
	}
	o.Most = p.most
	p.state, p.last = Score(p.state, o, DefaultDeniedShare, p.now)
	if p.last.Moved() {
		p.steps = append(p.steps, p.now.Sub(start).String()+" "+p.last.To.String())
	}
	return p.last
}

func (p *player) minutes(n int, c Counts) {
	for range n {
		p.minute(Observation{Minute: c})
	}
}

var attack, calm = Counts{Admitted: 100, Denied: 900}, Counts{Admitted: 50}

func TestATenantThatKeepsBeingDeniedClimbsTheLadderAndComesDownWhenItIsQuiet(t *testing.T) {
	p := newPlayer()
	p.minutes(30, attack)
	p.minutes(60, calm)
	want := []string{
		"3m0s warn", "8m0s half", "13m0s tenth", "18m0s ban_5m", "23m0s tenth", "28m0s ban_1h",
		"1h28m0s tenth",
	}
	assert.Equal(t, want, p.steps, "its steps")
	p.minutes(60, calm)
	want = append(want, "1h43m0s half", "1h58m0s warn", "2h13m0s none")
	assert.Equal(t, want, p.steps, "its steps")
}

func TestAReasonNamesTheStepAndTheNumbers(t *testing.T) {
	p := newPlayer()
	p.minutes(3, attack)
	const want = "a warning, because 2700 of its 3000 requests in 5 minutes were denied (90 %, a flag from 80 %)"
	assert.Equal(t, want, p.last.Reason(), "the reason")
	p.minutes(20, calm)
	assert.Equal(t, "unsuspicious", p.last.Reason(), "the reason of a calm minute")
}

func TestARepeatWithinADayClimbsFaster(t *testing.T) {
	climbs := func(pause int) []string {
		p := newPlayer()
		p.minutes(8, attack) // up to half of its limits
		p.minutes(40, calm)
		require.Equal(t, None, p.state.Step)
		p.minutes(pause, calm)
		p.steps = nil
		p.minutes(9, attack)
		for i := range p.steps {
			_, p.steps[i], _ = strings.Cut(p.steps[i], " ")
		}
		return p.steps
	}
	got, want := climbs(600), []string{"half", "ban_5m"}
	assert.Equal(t, want, got, "within a day it climbs")
	got, want = climbs(24*60), []string{"warn", "half"}
	assert.Equal(t, want, got, "after a day it climbs")
}

func TestWhatAPenaltyDeniesIsNoEvidence(t *testing.T) {
	p := newPlayer()
	p.minutes(8, attack)
	require.Equal(t, Half, p.state.Step)
	// Its limit is 100 requests a minute, and now it sends 300: two thirds are denied. With half the limit more are.
	for range 40 {
		factor := p.state.Step.Factor()
		p.minute(Observation{Minute: limited(300, 100, factor), Factor: factor})
	}
	assert.Equal(t, None, p.state.Step, "a tenant that is denied mostly by its penalty")
}

func TestFewDenialsFlagNothing(t *testing.T) {
	p := newPlayer()
	p.minutes(60, Counts{Denied: 59})
	if len(p.steps) > 0 {
		t.Errorf("less than 300 denied requests in 5 minutes lead to %q", p.steps)
	}
}

func TestAnExemptTenantIsOnNoStep(t *testing.T) {
	p := newPlayer()
	p.most = None
	p.minutes(60, attack)
	if len(p.steps) > 0 {
		t.Errorf("an exempt tenant comes to %q", p.steps)
	}
	p.most = Tenth // an exemption within the tenant, which a ban would beat
	p.minutes(60, attack)
	assert.Equal(t, Tenth, p.state.Step, "a tenant that must not be banned")
	p.most = None
	p.minutes(1, attack)
	const want = "no penalty after a tenth of each limit, because it is exempt"
	if got := p.last.Reason(); p.state.Step != None || got != want {
		t.Errorf("a tenant that has become exempt is on %v: %s", p.state.Step, got)
	}
}

func TestABaselineDoesNotLearnAnAttack(t *testing.T) {
	p := newPlayer()
	p.minutes(120, calm)
	before := p.state.Demand
	p.minutes(300, Counts{Admitted: 100, Denied: 60}) // not enough for a flag
	if p.state.Demand != before || len(p.steps) > 0 {
		t.Errorf("the baseline went from %+v to %+v, steps %q", before, p.state.Demand, p.steps)
	}
	p.minute(Observation{Minute: Counts{Admitted: 100_000}})
	if after := p.state.Demand; after.Mean > 1.1*before.Mean {
		t.Errorf("one minute with 2,000 times the requests moved the mean from %v to %v", before.Mean, after.Mean)
	}
}

func TestAColdBaselineFlagsNothing(t *testing.T) {
	p := newPlayer()
	p.minutes(30, calm)
	p.minutes(10, Counts{Admitted: 1000, Denied: 3000})
	if len(p.steps) > 0 {
		t.Errorf("a spike after 30 minutes leads to %q", p.steps)
	}
	p = newPlayer()
	p.minutes(60, calm)
	p.minutes(10, Counts{Admitted: 1000, Denied: 3000})
	if p.state.Step < Warn || p.last.Flags[0].Signal != Spike {
		t.Errorf("a spike after an hour leads to %q, %+v", p.steps, p.last)
	}
}

func TestRetriesAfterOurFaultAreExcused(t *testing.T) {
	p := newPlayer()
	for range 5 {
		p.minute(Observation{Unavailable: 500})
	}
	p.minutes(14, attack)
	if len(p.steps) > 0 {
		t.Errorf("retries within 15 minutes after an outage lead to %q", p.steps)
	}
	p.minutes(2, attack)
	assert.Equal(t, Warn, p.state.Step, "what goes on after 15 minutes")
}

func TestAForgivenTenantStartsAnew(t *testing.T) {
	p := newPlayer()
	p.minutes(120, calm)
	p.minutes(30, attack)
	p.state = p.state.Forgive()
	if p.state.Demand.Learned < 100 {
		t.Errorf("its baseline is gone: %+v", p.state)
	}
	p.steps = nil
	p.minutes(8, attack)
	if len(p.steps) != 2 || !strings.HasSuffix(p.steps[0], " warn") || !strings.HasSuffix(p.steps[1], " half") {
		t.Errorf("it climbs %q, want a warning first", p.steps)
	}
}

func TestAStateIsReadAsItWasWritten(t *testing.T) {
	p := newPlayer()
	p.minutes(100, calm)
	p.minutes(30, attack)
	text, err := json.Marshal(p.state)
	require.NoError(t, err)
	var read State
	if err := json.Unmarshal(text, &read); err != nil || !reflect.DeepEqual(read, p.state) {
		t.Errorf("%s is read as %+v, %v", text, read, err)
	}
	assert.Error(t, json.Unmarshal([]byte(`{"step":"jail"}`), &read), "a step that does not exist is read")
}

// play plays bursts of denials, of a number of seconds each, which begin so many seconds after every period. Beside
// them the tenant sends what is admitted.
func (p *player) play(length, period, first, burst int, admitted int64) {
	denied := make([]int64, length)
	for begin := first; begin+burst < 60*length; begin += period {
		for second := begin; second < begin+burst; second++ {
			denied[second/60] += 1000
		}
	}
	for _, n := range denied {
		p.minute(Observation{Minute: Counts{Admitted: admitted, Denied: n}})
	}
}

func TestABurstOfAMinuteFlagsNothingWhereverItBegins(t *testing.T) {
	for _, every := range []int{4 * 60, 5 * 60, 10 * 60, 60 * 60} {
		for _, burst := range []int{1, 2, 10, 59, 60} {
			for first := 60; first < 120; first++ { // second by second around the turns of two minutes
				p := newPlayer()
				p.play(180, every, first, burst, 0)
				if len(p.steps) > 0 {
					t.Fatalf("bursts of %d s every %d s lead to %q if they begin at second %d", burst, every, p.steps, first%60)
				}
			}
		}
	}
}

func TestWhatIsDeniedForThreeMinutesIsFlaggedWheneverItBegins(t *testing.T) {
	for first := 60; first < 120; first++ {
		p := newPlayer()
		p.play(8, 60*60, first, 181, 10)
		assert.Len(t, p.steps, 1, "denials for 3 minutes from second %d on lead", first%60)
	}
}

func TestABurstThatLeavesAFewDenialsBehindFlagsNothing(t *testing.T) {
	p := newPlayer()
	for range 20 {
		p.minutes(2, Counts{Denied: 20_000})
		p.minutes(3, Counts{Denied: 59})
	}
	if len(p.steps) > 0 {
		t.Errorf("bursts and the few requests that are denied after them lead to %q", p.steps)
	}
}
