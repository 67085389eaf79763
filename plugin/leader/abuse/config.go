package abuse

import "time"

// Window is the time over which shares and distinct names are counted.
const Window = 5 * time.Minute

// Config holds the thresholds. Default returns those that are documented.
type Config struct {
	DeniedShare float64 // of the requests in Window, from which DeniedShare flags
	MinDenied   int64   // requests denied in Window, below which nothing is flagged; a fifth in each of three minutes

	SpikeFactor     float64 // times the baseline
	SpikeDeviations float64 // above the baseline
	SpikeShare      float64 // of the requests in Window denied

	BreadthMin        int64   // different users, addresses or credentials denied in Window
	BreadthFactor     float64 // times the baseline
	BreadthDeviations float64 // above the baseline
	BreadthShare      float64 // of the requests in Window denied

	LearnShare float64 // of the requests in Window denied, above which a minute is not learned
	WarmUp     int64   // minutes to learn before a baseline flags
	HalfLife   float64 // minutes

	ClimbAfter time.Duration // on a step, before a flag leads to the next one; at least Window
	QuietAfter time.Duration // without a flag, before a step down
	Memory     time.Duration // for which a penalty makes the next climb faster
	FaultGrace time.Duration // without a flag, after a store that did not answer denied a tenth of the requests
}

// Default returns the thresholds of docs/abuse.md.
func Default() Config {
	return Config{
		DeniedShare: 0.8, MinDenied: 300,
		SpikeFactor: 4, SpikeDeviations: 6, SpikeShare: 0.5,
		BreadthMin: 100, BreadthFactor: 5, BreadthDeviations: 6, BreadthShare: 0.3,
		LearnShare: 0.1, WarmUp: 60, HalfLife: 360,
		ClimbAfter: Window, QuietAfter: 15 * time.Minute, Memory: 24 * time.Hour,
		FaultGrace: 15 * time.Minute,
	}
}
