// Package limit is the arithmetic of rate limits: state × now × cost in, state and status out.
//
// Six algorithms live here: token bucket (a leaky bucket is one with burst 1), fixed window, sliding window, sliding
// log and concurrency, which counts requests in flight (slots.go). They are pure: time is an argument, and once a
// [Limit] is compiled nothing locks, logs, returns an error or allocates, except the entries of sliding logs and of
// concurrency limits. All numbers are integers, and every product is bounded by [MaxProduct] when the limit is
// compiled, so the same arithmetic is exact in Go's int64 and in the doubles of Redis's Lua.
//
// What does not live here: who is limited (package policy), where states are kept (the stores), and what a set of
// limits means for one request (package decision).
//
// The life of a state under one limit is three calls, always in this order:
//
//	l.Advance(&state, now)                  // refill, rotate, expire
//	if l.Wait(&state, now, cost) == 0 {     // would cost be admitted?
//		l.Spend(&state, now, cost)          // only when every other limit of the request admits too
//	}
//	status := l.Status(&state, now)         // the numbers that a client reads
package limit

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/calendar"
)

// Micros is an instant (microseconds since the Unix epoch, never negative) or a duration in microseconds.
type Micros int64

const (
	// Second is one second in microseconds.
	Second Micros = 1e6
	// StepBack is the furthest that a clock may step back without resetting buckets. Nothing refills until the clock has
	// caught up.
	StepBack = 3600 * Second
	// Never is what [Limit.Wait] returns when the cost is above the capacity, so that no wait helps.
	Never Micros = 1<<63 - 1
	// MaxProduct bounds every product of the arithmetic. Sums of two such products stay below 2^53, so they are
	// exact in a double.
	MaxProduct = 1 << 52
	// MaxQuantity bounds the quantity and the burst of a limit, in tokens.
	MaxQuantity = 1_000_000_000_000
	// MaxWindow bounds a limit's window: 366 days.
	MaxWindow = 366 * 24 * 3600 * Second
	// MaxLogQuantity bounds the quantity of a sliding log, which stores every admission.
	MaxLogQuantity = 10_000
)

// Seconds returns m in whole seconds, rounded up, so that a client that waits them has waited at least m.
func (m Micros) Seconds() int64 {
	return ceilDiv(int64(m), int64(Second))
}

// Algorithm is the way a limit counts. The zero value, None, is the state of a bucket that was never spent from.
type Algorithm uint8

// The algorithms. Their bounds, for any interval of length t that begins and ends on a tick of the limit, with
// H the capacity after the hard threshold (burst for buckets, quantity for windows, times hard ÷ 100):
//
//	token bucket    H + t × quantity ÷ window
//	fixed window    H per aligned window or period of its calendar, 2H in any interval of one window
//	sliding window  H per aligned window, H × (1 + e÷window) in an interval of one window that reaches e into the later:
//	                about H for even traffic, just below 2H when all of a window was spent at its very end
//	sliding log     H in any interval of one window
//	concurrency     quantity requests in flight, of those younger than a window, at any instant
//
// Intervals are of a clock that does not step. When it steps back by no more than [StepBack], nothing refills until it
// has caught up, and the bounds hold if each admission counts at the latest instant that its bucket has seen. A clock
// that is read before the bucket is locked steps back as well: for a request that is overtaken by one with a later
// reading. So a store reads it while nothing else can spend from the bucket.
//
// Each step forward may fill a bucket that is not full yet, and each step back by more than StepBack resets it: an
// interval that contains one may see H more. Without the reset, a bucket that was exhausted while the clock was ahead
// would admit nothing for as long as the clock had been ahead.
const (
	None Algorithm = iota
	TokenBucket
	LeakyBucket
	FixedWindow
	SlidingWindow
	SlidingLog
	// CalendarWindow is the state of a fixed window whose windows are the periods of a calendar. No spec has it.
	CalendarWindow
	Concurrency
)

var algorithmNames = [...]string{
	"none", "token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log", "calendar_window",
	"concurrency",
}

func (a Algorithm) String() string {
	if int(a) < len(algorithmNames) {
		return algorithmNames[a]
	}
	return fmt.Sprintf("algorithm(%d)", uint8(a))
}

// ParseAlgorithm returns the algorithm of a name; it is the inverse of [Algorithm.String]. The error lists the names.
func ParseAlgorithm(name string) (Algorithm, error) {
	for i, known := range algorithmNames[1:] {
		if name == known && Algorithm(i+1) != CalendarWindow {
			return Algorithm(i + 1), nil
		}
	}
	return None, fmt.Errorf(
		"unknown algorithm %q: use token_bucket, leaky_bucket, fixed_window, sliding_window, sliding_log or concurrency",
		name,
	)
}

// Spec is a limit as people write it: Quantity tokens per Window.
type Spec struct {
	Algorithm Algorithm
	Quantity  int64  // tokens per window, 1 to MaxQuantity; of concurrency: requests at once, 1 to MaxSlots
	Window    Micros // whole seconds, 1 s to MaxWindow; of concurrency: how long a request counts, at most MaxDuration
	Burst     int64  // buckets only: capacity in tokens; 0 = Quantity (leaky bucket: 1)
	SoftPct   int64  // percent of the limit above which usage is soft throttled; 0 = no soft zone
	HardPct   int64  // percent of the limit above which usage is denied, at least 100; 0 = 100; ignored without SoftPct
	SoftOnly  bool   // warn above SoftPct (0 = 100) percent, never deny

	// Calendar makes the windows of a fixed window the periods of a calendar. Window is then the longest length of a
	// period: 0 means that too.
	Calendar *calendar.Calendar `json:",omitempty"`
}

// Limit is a compiled [Spec]. It is immutable; the zero value is not usable.
type Limit struct {
	spec Spec
	kind Algorithm // the state it keeps: LeakyBucket is kept as TokenBucket, a window with a calendar as CalendarWindow

	tick  Micros // time is read in ticks: the finest of 1 µs, 1 ms, 1 s for which all products stay in bounds
	ticks int64  // the window in ticks
	rate  int64  // buckets: a of the reduced fraction a/b = tokens per tick
	base  int64  // units per token: buckets b, sliding window ticks, others 1
	step  int64  // buckets: ticks in which a token is refilled, rounded up: what a mark counts by, see refund.go
	tag   uint8  // 4 bits of the definition, which mark states of another rate or window

	// In units of 1/base token:
	size    int64 // 100 percent of the limit
	soft    int64 // usage above is soft throttled
	hard    int64 // usage above is denied; for SoftOnly the most that is counted
	maxDebt int64 // buckets: the largest debt, so that no wait is longer than MaxProduct microseconds
}

var ticks = [...]Micros{1, 1_000, Second}

// New compiles a spec. The error joins one *FieldError for each reason why it cannot.
func New(spec Spec) (Limit, error) {
	if err := check(spec); err != nil {
		return Limit{}, err
	}
	l := Limit{spec: spec, kind: spec.Algorithm}
	switch spec.Algorithm {
	case LeakyBucket:
		l.kind = TokenBucket
		if spec.Burst == 0 {
			l.spec.Burst = 1
		}
	case TokenBucket:
		if spec.Burst == 0 {
			l.spec.Burst = spec.Quantity
		}
	default:
		l.spec.Burst = spec.Quantity
	}
	if spec.Calendar != nil {
		l.kind, l.spec.Window = CalendarWindow, Micros(spec.Calendar.Longest())
	}
	for _, tick := range ticks {
		if l.scale(tick) {
			l.tag = l.definitionTag()
			return l, nil
		}
	}
	return Limit{}, &FieldError{
		Field: "limit",
		Problem: fmt.Sprintf(
			"%d per %d s with capacity %d cannot be counted exactly: choose a smaller limit, burst or window",
			spec.Quantity, spec.Window/Second, l.spec.Burst,
		),
	}
}

// Nothing returns a fixed window that admits nothing. It has no bucket: a store may divide by its capacity.
func Nothing(window Micros) (Limit, error) {
	l, err := New(Spec{Algorithm: FixedWindow, Quantity: 1, Window: window})
	l.spec.Quantity, l.spec.Burst, l.size, l.soft, l.hard = 0, 0, 0, 0, 0
	return l, err
}

// FieldError reports one field of a spec that is out of range. Where fields contradict each other it is the field that
// the schema names for that: a reader gets one fault for each cause.
type FieldError = calendar.FieldError

func check(spec Spec) error {
	var errs []error
	fault := func(field, format string, args ...any) {
		errs = append(errs, &FieldError{Field: field, Problem: fmt.Sprintf(format, args...)})
	}
	if spec.Algorithm == None || spec.Algorithm == CalendarWindow || int(spec.Algorithm) >= len(algorithmNames) {
		fault("algorithm", "must be given")
	}
	if spec.Quantity < 1 || spec.Quantity > MaxQuantity {
		fault("limit", "must be between 1 and %d, got %d", int64(MaxQuantity), spec.Quantity)
	}
	if spec.Algorithm == Concurrency {
		checkConcurrency(&spec, fault)
		return errors.Join(errs...)
	}
	switch {
	case spec.Calendar != nil:
		if spec.Algorithm != FixedWindow {
			fault("algorithm", "must be fixed_window beside period")
		}
		if spec.Window != 0 && spec.Window != Micros(spec.Calendar.Longest()) {
			fault("period", "a limit has this or a window_size, not both")
		}
	case spec.Window < Second || spec.Window > MaxWindow || spec.Window%Second != 0:
		seconds := float64(spec.Window) / float64(Second)
		fault("window_size", "must be whole seconds between 1 and %d, got %g", MaxWindow/Second, seconds)
	}
	bucket := spec.Algorithm == TokenBucket || spec.Algorithm == LeakyBucket
	if spec.Burst < 0 || spec.Burst > MaxQuantity || (spec.Burst > 0 && !bucket) {
		fault("burst", "must be between 1 and %d, and only a token_bucket or leaky_bucket has one, got %d",
			int64(MaxQuantity), spec.Burst)
	}
	if spec.Algorithm == SlidingLog && spec.Quantity > MaxLogQuantity {
		fault("limit", "a sliding_log stores every admission: at most %d, got %d", MaxLogQuantity, spec.Quantity)
	}
	if spec.SoftPct < 0 || spec.SoftPct > 1000 {
		fault("soft_threshold_pct", "must be between 1 and 1000, got %d", spec.SoftPct)
	}
	if spec.HardPct != 0 && (spec.HardPct < 100 || spec.HardPct > 1000) {
		fault("hard_threshold_pct", "must be between 100 and 1000, got %d", spec.HardPct)
	}
	if spec.SoftPct != 0 && !spec.SoftOnly && max(spec.HardPct, 100) < spec.SoftPct {
		fault("hard_threshold_pct", "must be at least soft_threshold_pct (%d), got %d", spec.SoftPct, max(spec.HardPct, 100))
	}
	return errors.Join(errs...)
}

// checkConcurrency checks what of a concurrency limit differs from other limits. It has neither burst nor thresholds.
func checkConcurrency(spec *Spec, fault func(field, format string, args ...any)) {
	if spec.Quantity > MaxSlots {
		fault("limit", "a concurrency limit stores every request in flight: at most %d, got %d", MaxSlots, spec.Quantity)
	}
	switch {
	case spec.Calendar != nil:
		fault("algorithm", "must be fixed_window beside period")
	case spec.Window == 0:
		fault("algorithm", "needs max_duration")
	case spec.Window < Second || spec.Window > MaxDuration || spec.Window%Second != 0:
		seconds := float64(spec.Window) / float64(Second)
		fault("max_duration", "must be whole seconds between 1 and %d, got %g", MaxDuration/Second, seconds)
	}
	if spec.Burst != 0 || spec.SoftPct != 0 || spec.HardPct != 0 {
		fault("algorithm", "must not be concurrency beside burst, soft_threshold_pct or hard_threshold_pct")
	}
	if spec.SoftOnly {
		fault("soft_only", "a concurrency limit denies: use mode shadow to try it")
	}
}

// scale sets the units of l for one tick, and reports whether every product stays within MaxProduct.
func (l *Limit) scale(tick Micros) bool {
	l.tick, l.ticks = tick, int64(l.spec.Window/tick)
	switch l.kind {
	case TokenBucket:
		g := gcd(l.spec.Quantity, l.ticks)
		l.rate, l.base = l.spec.Quantity/g, l.ticks/g
		l.step = ceilDiv(l.base, l.rate)
	case SlidingWindow:
		l.base = l.ticks
	default:
		l.base = 1
	}
	softPct, hardPct := l.spec.SoftPct, int64(100)
	switch {
	case l.spec.SoftOnly:
		if softPct == 0 {
			softPct = 100
		}
		// Usage beyond twice the limit is not counted, so that warnings end soon after the excess does.
		hardPct = max(200, 2*softPct)
	case softPct == 0:
		softPct = 100
	default:
		hardPct = max(100, l.spec.HardPct)
	}
	var ok [3]bool
	l.size, ok[0] = percent(l.spec.Burst, l.base, 100)
	l.soft, ok[1] = percent(l.spec.Burst, l.base, softPct)
	l.hard, ok[2] = percent(l.spec.Burst, l.base, hardPct)
	if l.maxDebt = MaxProduct; l.kind == TokenBucket {
		if hi, lo := bits.Mul64(uint64(l.rate), uint64(MaxProduct/tick)); hi == 0 && lo < MaxProduct {
			l.maxDebt = int64(lo)
		}
	}
	return ok[0] && ok[1] && ok[2] && l.hard <= l.maxDebt
}

// definitionTag returns 4 bits of a bucket's rate and tick, of a fixed window's length, or of its calendar. Together
// with a bucket's base they distinguish definitions. The others need none: what they refund is found by its instant.
func (l *Limit) definitionTag() uint8 {
	of := uint64(l.rate) ^ uint64(l.tick)<<48
	switch l.kind {
	case TokenBucket:
	case FixedWindow:
		of = uint64(l.spec.Window/Second) ^ 45<<32 // which tells the common windows apart: seconds to years
	case CalendarWindow:
		of = l.spec.Calendar.Hash()
	default:
		return 0
	}
	const golden = 0x9e3779b97f4a7c15 // 2^64 ÷ the golden ratio
	hash := of * golden
	return uint8((hash ^ hash>>32) * golden >> 60)
}

// percent returns tokens × base × pct ÷ 100, rounded down, for a pct below 2^11, and whether it is at most MaxProduct.
func percent(tokens, base, pct int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(tokens), uint64(base))
	if hi != 0 || lo > MaxProduct {
		return 0, false
	}
	units := int64(lo) * pct / 100
	return units, units <= MaxProduct
}

// Spec returns the spec that l was compiled from, with Burst filled in: the capacity of every algorithm, in tokens.
func (l *Limit) Spec() Spec { return l.spec }

// Calendar returns the calendar whose periods are the windows of a fixed window, or nil.
func (l *Limit) Calendar() *calendar.Calendar { return l.spec.Calendar }

// Capacity returns the most tokens that can be spent at once from a full limit, the hard threshold included.
func (l *Limit) Capacity() int64 { return l.hard / l.base }

// Tick returns the resolution in which the limit reads time.
func (l *Limit) Tick() Micros { return l.tick }

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// ceilDiv returns n ÷ d rounded up, for n ≥ 0 and d > 0. It does not overflow for any n, [Never] included.
func ceilDiv(n, d int64) int64 {
	q := n / d
	if q*d != n {
		q++
	}
	return q
}
