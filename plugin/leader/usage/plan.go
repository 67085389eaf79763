package usage

import "time"

// maxBatches bounds the batches of one transaction, and so what a hostile node can have it hold.
const maxBatches = 64

// head describes a batch that waits, without its payload. Node, Epoch and Seq are its key.
type head struct {
	Node, Epoch string
	Seq         int64
	Login       string
	Began       time.Time
	ReceivedAt  time.Time
	LastSeq     int64 // of its source; 0: there is none yet

	source *source // of the plan; nil: it has not the batch
	fault  string  // why it cannot be added; "": it can
}

// source holds what a transaction changes of a source, in the order of the columns.
type source struct {
	Node, Epoch, Login    string
	LastSeq               int64
	Gaps, TooLate, Faulty int64
	Watermark, SeenAt     time.Time
}

// plan is what one transaction does with the batches that wait.
type plan struct {
	drop    []*head   // batches that add nothing: added before, or too late
	add     []*head   // batches to add, in the order of their seq
	sources []*source // of all these
	again   int64
	more    bool // a bound ended the plan
}

// planBatches decides which batches can be added now. Heads are ordered by node, epoch and seq. Of each source they are
// the first ones, at most maxBatches. A missing one is waited for until gapAfter.
func planBatches(heads []*head, now state, gapAfter time.Duration) plan {
	p := plan{}
	for first := 0; first < len(heads) && !p.more; {
		end := first + 1
		for end < len(heads) && heads[end].Node == heads[first].Node && heads[end].Epoch == heads[first].Epoch {
			end++
		}
		p.addSource(heads[first:end], now, gapAfter)
		first = end
	}
	return p
}

// addSource plans the batches of one source, up to the first that has to wait.
func (p *plan) addSource(heads []*head, now state, gapAfter time.Duration) {
	h := heads[0]
	s := &source{Node: h.Node, Epoch: h.Epoch, Login: h.Login, LastSeq: h.LastSeq}
	done := 0
	for _, h := range heads {
		if h.Seq > s.LastSeq+1 && now.now.Sub(h.ReceivedAt) < gapAfter {
			break // it waits for the one before it
		}
		if p.more = len(p.add) == maxBatches; p.more {
			break
		}
		p.addBatch(s, h, now.oldest())
		done++
	}
	if done > 0 {
		p.sources = append(p.sources, s)
	}
	p.more = p.more || done == maxBatches
}

func (p *plan) addBatch(s *source, h *head, oldest time.Time) {
	h.source = s
	s.SeenAt = later(s.SeenAt, h.ReceivedAt)
	s.Watermark = later(s.Watermark, h.Began)
	if h.Seq <= s.LastSeq {
		p.again++
		p.drop = append(p.drop, h)
		return
	}
	s.Gaps += h.Seq - s.LastSeq - 1
	s.LastSeq = h.Seq
	if h.Began.Before(oldest) {
		s.TooLate++
		p.drop = append(p.drop, h)
		return
	}
	p.add = append(p.add, h)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
