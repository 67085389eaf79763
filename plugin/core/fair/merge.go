package fair

import "math"

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
