package limit

import (
	"cmp"
	"slices"
)

// A concurrency limit admits a request if fewer than quantity others are in flight and younger than its window. Each
// request in flight has a slot: from its admission until it is released or until its deadline, a window later,
// whichever is first. So of the requests that are younger than the window, no more than quantity are ever in flight,
// whatever becomes of the processes that admitted them.
//
// A slot is free by its release or its deadline only, and no instant at which one becomes free is known before. So Wait
// and Reset are estimates here.

const (
	// MaxSlots bounds the quantity of a concurrency limit, which stores every request in flight.
	MaxSlots = 10_000
	// MaxDuration bounds the window of a concurrency limit: a day.
	MaxDuration = 86_400 * Second
	// slotsAhead is how far ahead the deadline of a slot can be, with a clock that stepped back. Later ones do not count.
	slotsAhead = StepBack + MaxDuration
)

// SlotID identifies a slot: two random numbers, from 0 to MaxProduct. Who knows the id can release the slot.
type SlotID [2]int64

// Slot is held by one request in flight.
type Slot struct {
	Deadline Micros // from which on it is free
	ID       SlotID
}

// IsConcurrency reports whether the limit counts requests in flight. Then a request takes one slot of it, whatever it
// costs otherwise, and gives it back when it ends.
func (l *Limit) IsConcurrency() bool { return l.kind == Concurrency }

// Age returns how long a slot with that deadline has been held at now. Of a slot that was taken under another window it
// is as far off as the windows differ.
func (l *Limit) Age(deadline, now Micros) Micros { return max(now-(deadline-l.spec.Window), 0) }

// Acquire spends cost tokens, as Spend does, and returns the receipt of the take. Of a concurrency limit it takes one
// slot, which has the id.
func (l *Limit) Acquire(s *State, now Micros, cost int64, id SlotID) Receipt {
	if l.kind != Concurrency {
		l.Spend(s, now, cost)
		return s.Receipt()
	}
	if cost <= 0 {
		return Receipt{}
	}
	slot := Slot{Deadline: now + l.spec.Window, ID: id}
	place, _ := slices.BinarySearchFunc(s.Slots, slot.Deadline+1, func(a Slot, end Micros) int {
		return cmp.Compare(a.Deadline, end)
	})
	s.Slots = slices.Insert(s.Slots, place, slot)
	s.Spent++
	return Receipt{At: slot.Deadline, Debt: id[0], Mark: id[1]}
}

// expireSlots drops the slots whose deadline is over, or further ahead than any can be.
func (s *State) expireSlots(now Micros) {
	for len(s.Slots) > 0 && s.Slots[0].Deadline <= now {
		s.Slots, s.Spent = s.Slots[1:], s.Spent-1
	}
	for n := len(s.Slots); n > 0 && s.Slots[n-1].Deadline > now+slotsAhead; n-- {
		s.Slots, s.Spent = s.Slots[:n-1], s.Spent-1
	}
	if len(s.Slots) == 0 {
		s.Slots = nil
	}
}

// releaseSlot frees the slot of a take, and returns 1. It returns 0 if the slot is free already.
func (s *State) releaseSlot(now Micros, r Receipt) int64 {
	if s.Algorithm != Concurrency || r.At <= now {
		return 0
	}
	id := SlotID{r.Debt, r.Mark}
	i := slices.IndexFunc(s.Slots, func(slot Slot) bool { return slot.ID == id })
	if i < 0 {
		return 0
	}
	s.Slots = slices.Delete(s.Slots, i, i+1)
	s.Spent--
	return 1
}

// waitSlot estimates when so many slots are free: the oldest has been held for its age, so of as many as the limit has
// one becomes free each age ÷ quantity. It is a second at least, and no later than the first deadline.
func (l *Limit) waitSlot(s *State, now Micros, slots int64) Micros {
	if s.Spent <= l.hard-slots || len(s.Slots) == 0 {
		return 0
	}
	first := s.Slots[0]
	return min(max(l.Age(first.Deadline, now)/Micros(l.spec.Quantity), Second), first.Deadline-now)
}

// Deadlines returns the deadlines of slots that are held at now, at most so many: the first ones.
func (s *State) Deadlines(now Micros, most int) (deadlines []Micros) {
	for _, slot := range s.Slots {
		if slot.Deadline > now && len(deadlines) < most {
			deadlines = append(deadlines, slot.Deadline)
		}
	}
	return deadlines
}
