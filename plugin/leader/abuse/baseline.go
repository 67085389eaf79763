package abuse

import "math"

// Baseline is an exponentially weighted mean with its variance. The zero value has learned nothing.
type Baseline struct {
	Mean     float64 `json:"mean"`
	Variance float64 `json:"variance"`
	Learned  int64   `json:"learned"` // values
}

// clipDeviations bounds what a baseline learns of a value above the mean, once it has learned enough.
const clipDeviations = 3

// learn updates the baseline by a value. The weight of a value halves after halfLife further ones.
func (b *Baseline) learn(x, halfLife float64, enough int64) {
	if b.Learned >= enough {
		x = min(x, b.Mean+clipDeviations*b.deviation())
	}
	b.Learned++
	alpha := max(1-math.Exp2(-1/halfLife), 1/float64(b.Learned))
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
