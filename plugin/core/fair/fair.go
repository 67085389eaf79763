// Package fair divides a limit among the tenants that spend from one bucket.
//
// [Fill] is weighted max-min fairness, also called water-filling: every tenant gets what it demands, up to one level
// times its weight, and the level is as high as the limit allows. So no tenant gets less because another demands
// more, and what one tenant does not use goes to the others.
//
// [Divide] adds two rules. Tenants with little demand count as one, because there may be many of them: together they
// get what they demand, at most what their weights entitle them to, and have one cap at each node. And while the demand
// is below [Threshold], there are no caps at all.
//
// A [Report] carries the demand at one node, and [Caps] the result: package share counts demand, exchanges both and
// enforces caps. This package has no clock, no I/O and no state.
package fair

import (
	"cmp"
	"math"
	"slices"
)

const (
	// Threshold is the part of a limit's rate below which demand has no caps.
	Threshold = 0.8
	// smallShare is the part of a limit's rate up to which the demand of one tenant is small.
	smallShare = 0.001
)

// Demand is what one tenant, or all small ones together, demand of a limit.
type Demand struct {
	// Tokens is the demand in tokens per second: what was admitted, and what the limit itself or a cap denied.
	Tokens float64
	// Usable is the part of Tokens that can be admitted as far as the tenant's other limits allow. At most Tokens.
	Usable float64
	// Weight is the tenant's weight, above 0.
	Weight float64
}

// Fill returns the highest level at which the demands fit into rate, where each tenant gets its usable demand, at most
// the level times its weight. If all fit, it returns the level to which every tenant can grow: the level of the tenant
// with the most for its weight, and what is left divided by all weights. It changes the order of demands.
func Fill(rate float64, demands []Demand) (level float64) {
	slices.SortFunc(demands, func(a, b Demand) int { return cmp.Compare(a.Usable*b.Weight, b.Usable*a.Weight) })
	left, weights := max(rate, 0), 0.0
	for i := range demands {
		weights += demands[i].Weight
	}
	if weights == 0 {
		return left
	}
	unsatisfied := weights
	for i := range demands {
		d := &demands[i]
		if d.Usable*unsatisfied > left*d.Weight {
			return left / unsatisfied
		}
		left, unsatisfied = max(left-d.Usable, 0), unsatisfied-d.Weight
	}
	last := &demands[len(demands)-1]
	return last.Usable/last.Weight + left/weights
}

// Share returns the tokens per second that a demand gets at a level.
func (d *Demand) Share(level float64) float64 { return min(d.Usable, level*d.Weight) }

// Limit is a limit to divide.
type Limit struct {
	Rate     float64 // tokens per second by which the bucket refills
	Capacity float64 // tokens of the full bucket
	Left     float64 // tokens in the bucket; below 0: unknown
}

// Divide returns the level of the demands on a limit, and whether there are caps. It changes the order of named.
//
// What is in the bucket beyond its reserve is divided too, within a second; what the reserve lacks is withheld, at most
// a half of the rate. So the reserve is there for the next rush, and what an idle bucket has saved is not lost.
func Divide(l Limit, named []Demand, small Demand) (level float64, capped bool) {
	total, weights := small.Usable, small.Weight
	for i := range named {
		total, weights = total+named[i].Usable, weights+named[i].Weight
	}
	if total < Threshold*l.Rate || weights == 0 {
		return math.Inf(1), false
	}
	rate := l.Rate
	if l.Left >= 0 {
		rate = max(rate+l.Left-l.Reserve(), rate/2)
	}
	if small.Weight == 0 {
		return Fill(rate, named), true
	}
	level = Fill(rate, append(slices.Clip(named), small))
	if small.Usable <= level*small.Weight { // what they do not use is for the others alone
		level = max(level, Fill(rate-small.Usable, named))
	}
	return level, true
}

// Small returns the demand, in tokens per second, up to which a tenant is small: a thousandth of the rate, but at least
// one token.
func (l *Limit) Small() float64 { return max(smallShare*l.Rate, 1) }

// Reserve returns the tokens that stay in the bucket for a rush: the tokens of a quarter of a second, at most a quarter
// of the bucket.
func (l *Limit) Reserve() float64 { return min(l.Rate, l.Capacity) / 4 }

// Merge divides a limit among the tenants of all reports, one of each node.
func Merge(l Limit, reports []Report) Caps {
	named, small := map[ID]Demand{}, Demand{}
	l.Left = -1
	for i := range reports {
		r := &reports[i]
		if r.Left >= 0 && (l.Left < 0 || r.Left < l.Left) {
			l.Left = r.Left
		}
		small = small.Plus(r.Small)
		for id, d := range r.Named {
			sum := named[id].Plus(d)
			sum.Weight = max(named[id].Weight, d.Weight) // it is one tenant
			named[id] = sum
		}
	}
	list := make([]Demand, 0, len(named))
	for id, d := range named {
		if d.Weight == 0 {
			small = small.Plus(d)
			delete(named, id)
			continue
		}
		list = append(list, d)
	}
	c := Caps{Level: math.Inf(1), Nodes: len(reports), Named: map[ID]float64{}}
	level, capped := Divide(l, list, small)
	if !capped {
		c.Free = l.Rate - small.Usable
		for i := range list {
			c.Free -= list[i].Usable
		}
		return c
	}
	c.Level = level
	c.Joint = Joint{Demand: small.Tokens, Share: small.Share(level)}
	for id, d := range named {
		if c.SpendsJointly(l, d.Weight) {
			c.Joint.Demand, c.Joint.Share = c.Joint.Demand+d.Tokens, c.Joint.Share+d.Share(level)
		}
		if d.Tokens > level*d.Weight && len(c.Named) < MaxNamed*32 {
			c.Named[id] = d.Tokens
		}
	}
	return c
}

// Plus returns the demand of two tenants together.
func (d Demand) Plus(other Demand) Demand {
	return Demand{Tokens: d.Tokens + other.Tokens, Usable: d.Usable + other.Usable, Weight: d.Weight + other.Weight}
}

// SpendsJointly reports whether a tenant that a node has named spends from the joint cap too. Its share is less than
// its own cap then, and there may be many like it.
func (c *Caps) SpendsJointly(l Limit, weight float64) bool { return c.Level*weight < l.Small() }

// JointAt returns the joint cap at one node in tokens per second, by the demand there of all tenants that share it; 0:
// there is none, because they demand no more than they get.
func (c *Caps) JointAt(l Limit, demand float64) float64 {
	if c.Joint.Demand <= c.Joint.Share {
		return 0
	}
	return max(c.Joint.Share*min(demand/c.Joint.Demand, 1), l.Small()/float64(max(c.Nodes, 1)))
}

// AfterRush returns the cap at one node of a tenant that rushed a little while ago, in tokens per second, while there
// are no other caps; 0: it has none. The tenant can use what it demands there, and of what is free the part that is the
// node's part of the rush.
func (c *Caps) AfterRush(l Limit, id ID, demand, rush float64) float64 {
	total := c.Named[id]
	if total <= c.Free || rush <= 0 {
		return 0
	}
	return max(demand+c.Free*min(rush/total, 1), l.Small()/float64(max(c.Nodes, 1)))
}

// leap is how far the demand of a small tenant can grow before the next caps.
const leap = 5

// At returns the cap of a tenant at one node, in tokens per second. It is the part of the tenant's share that is the
// node's part of the tenant's demand. A tenant that is not named has its whole share at each node: it demands no more
// than that, or has begun to since. No share is less than what is small.
func (c *Caps) At(l Limit, id ID, weight, demand float64) float64 {
	share := max(c.Level*weight, l.Small())
	total, named := c.Named[id]
	if !named || total <= 0 {
		return max(share, leap*l.Small())
	}
	return max(share*min(demand/total, 1), l.Small()/float64(max(c.Nodes, 1)))
}
