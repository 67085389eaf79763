package simulate

import (
	"math"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// counts is what is counted while the load comes.
type counts struct {
	offered, admitted, ideal uint64
	answered                 [decision.Sources]uint64
	waits                    waits
}

// decided counts a decision.
func (c *counts) decided(r *request, now limit.Micros) {
	if !r.Decision.Denied() {
		c.admitted++
	}
	c.answered[answeredBy(&r.Decision)]++
	c.waits.add(now - r.began)
}

func sum(list []uint64) (total uint64) {
	for _, n := range list {
		total += n
	}
	return total
}

// waits counts how long requests wait, in steps of a twelfth of a factor of two.
type waits struct {
	none  uint64
	steps [stepsPerDouble * 32]uint64
}

const stepsPerDouble = 12

func (w *waits) add(wait limit.Micros) {
	if wait <= 0 {
		w.none++
		return
	}
	w.steps[min(int(stepsPerDouble*math.Log2(float64(wait))), len(w.steps)-1)]++
}

// percentile returns the wait in milliseconds that a part of all requests does not exceed.
func (w *waits) percentile(part float64) float64 {
	all := w.none + sum(w.steps[:])
	left := int64(math.Ceil(part*float64(all))) - int64(w.none)
	for i := range w.steps {
		if left <= 0 {
			break
		}
		if left -= int64(w.steps[i]); left <= 0 {
			return math.Exp2(float64(i+1)/stepsPerDouble) / 1000
		}
	}
	return 0
}
