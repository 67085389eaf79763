// Package store declares what a store of buckets does: [Store]. Every store of the tree has it (packages memory, redis,
// and the decorators addresses, lease and outage around them), so a decorator wraps a store and is one, and no caller
// has to learn what is inside.
//
// The interface is a package of its own, because package bucket opens the stores and so imports all of them: declared
// there, it could not be named by a decorator, nor by package storetest, which tests the contract on every store.
// Packages that need less, as the path of a request does, declare the methods that they call.
package store

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Store keeps buckets. It must be safe for concurrent use, and must keep none of the slices that it is given. statuses
// has one element for each bound, in the same order.
//
// An outage is not an error: the statuses of the bounds that the store did not answer are [decision.Unanswered] with a
// Failure. Where a request is denied by bounds that were decided first, the others are Unanswered without one.
type Store interface {
	// Take checks every bound and then spends all enforced ones or none, atomically. A bound in shadow is spent alone, if
	// the enforced ones admit and it would admit too. Take fills in all statuses; Charged and Receipt say what was spent.
	// An error means that the request could not be made; then nothing is promised of the statuses.
	Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error

	// Peek answers as Take would at the same instant, but spends nothing and makes no key in a central store. Wait is that
	// of a Take, whatever answers it: a lease, a remembered denial, this node's share in an outage. The other numbers show
	// the buckets as they stand, before the request. Nothing is Charged. It returns errors as Take does.
	Peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error

	// Settle replaces what a Take of the same bounds spent for the statuses that are Charged by the actual tokens, one
	// number for each bound. A slot of a concurrency limit is released, whatever the number. It returns what is less, as
	// far as that is certain to be missing from the bucket, and charges what is more even where the bucket has no room,
	// see [limit.Limit.Settle]. It clears Charged and sets Settled to the change in tokens: below 0 returned, above 0
	// charged. Each bucket is settled on its own, once or never: a settlement whose outcome is unknown is not repeated. A
	// refund that cannot be made is lost. Where the central store did not settle a bound that it had charged, Failure has
	// the cause. An error means that the slices do not fit together.
	//
	// A store that has no other store behind it takes nil for actual, from a caller that denies the request after all. It
	// then returns all that was spent, and the statuses show the buckets without the request.
	Settle(ctx context.Context, bounds []policy.Bound, statuses []decision.Status, actual []int64) error
}

// Keeper is a Store that keeps the buckets itself, and so can delete them.
type Keeper interface {
	Store
	// Forget deletes the buckets of bounds, so that all of their limits are free again, slots included, and returns their
	// number. Some may be deleted before an error. Tokens that nodes hold on lease, this one included, can still be spent.
	Forget(ctx context.Context, bounds []policy.Bound) (int, error)
	// Slots returns slots of a concurrency limit's bucket that are held, at most so many: those that end first.
	Slots(ctx context.Context, bound *policy.Bound, most int) (Slots, error)
}

// Slots holds the deadlines of slots, see [limit.Limit.Age], and the clock of their store.
type Slots struct {
	Now       limit.Micros
	Deadlines []limit.Micros
}

// CheckActual returns an error unless there is one status, and one actual cost, for each bound to settle.
func CheckActual(bounds []policy.Bound, statuses []decision.Status, actual []int64) error {
	if err := CheckLengths("settle", bounds, statuses); err != nil {
		return err
	}
	if len(bounds) != len(actual) {
		return fmt.Errorf("settle %d bounds: got %d actual costs, need one for each bound", len(bounds), len(actual))
	}
	return nil
}

// Actuals returns the actual costs to settle bounds with, and whether that refunds them: nil stands for 0 of each. The
// error is of [CheckActual].
func Actuals(
	bounds []policy.Bound, statuses []decision.Status, actual []int64,
) (costs []int64, refunds bool, err error) {
	if refunds = actual == nil; refunds {
		actual = make([]int64, len(bounds))
	}
	return actual, refunds, CheckActual(bounds, statuses, actual)
}

// CheckLengths returns an error unless there is one status for each bound. The verb says what the caller was to do.
func CheckLengths(verb string, bounds []policy.Bound, statuses []decision.Status) error {
	if len(bounds) != len(statuses) {
		return fmt.Errorf("%s %d bounds: got %d statuses, need one for each bound", verb, len(bounds), len(statuses))
	}
	return nil
}

// NewSlotID returns the id of a slot that a take of a concurrency limit is about to get.
func NewSlotID() limit.SlotID {
	var random [16]byte
	rand.Read(random[:]) // never fails: it ends the program instead
	const below = limit.MaxProduct - 1
	return limit.SlotID{
		int64(binary.LittleEndian.Uint64(random[:8]) & below), int64(binary.LittleEndian.Uint64(random[8:]) & below),
	}
}

// Part is the part of a request that one store decides, for decorators that divide requests. It is used again.
type Part struct {
	Index    []int // of the request's bounds
	Bounds   []policy.Bound
	Statuses []decision.Status
}

// Add adds bound i of the request, with its status.
func (p *Part) Add(i int, b policy.Bound, status decision.Status) {
	p.Index, p.Bounds, p.Statuses = append(p.Index, i), append(p.Bounds, b), append(p.Statuses, status)
}

// Reset empties the part.
func (p *Part) Reset() {
	clear(p.Bounds) // the names in the keys are the request's
	p.Index, p.Bounds, p.Statuses = p.Index[:0], p.Bounds[:0], p.Statuses[:0]
}
