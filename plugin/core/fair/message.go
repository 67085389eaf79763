package fair

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math"
	"time"
)

// ID identifies a tenant in messages: 64 bits of the SHA-256 of its name, which is empty for requests without a tenant.
type ID uint64

// IDOf returns the id of a tenant.
func IDOf(name string) ID {
	sum := sha256.Sum256([]byte(name))
	return ID(binary.LittleEndian.Uint64(sum[:]))
}

// MaxNamed is the largest number of tenants that a message names.
const MaxNamed = 1000

// Report is the demand on one limit at one node, over the last second.
type Report struct {
	Left  float64 // tokens in the bucket, as the node saw it last; below 0: unknown
	Small Demand  // of all tenants that are not named
	Named map[ID]Demand
}

// Caps is the result of dividing one limit. It is valid for a second.
type Caps struct {
	// Level is the rate of a tenant with weight 1, in tokens per second; +Inf: there are no caps.
	Level float64
	// Nodes is the number of nodes that reported.
	Nodes int
	// Named has the demand in tokens per second of each tenant that demands more than the level allows it, at all nodes.
	// Without caps it has the demand with which tenants rushed a little while ago.
	Named map[ID]float64
	// Free is the part of the rate that is not demanded where there are no caps.
	Free float64
	// Joint is the share of the tenants that no node names, and of those for which [Caps.SpendsJointly].
	Joint Joint
}

// Joint is what tenants demand together and get together, in tokens per second at all nodes.
type Joint struct{ Demand, Share float64 }

// Answer is the answer to a report of demand: what the leading node has published, or what it needs to do so.
type Answer struct {
	Leads   bool          // the node leads: no other does
	Caps    []byte        // nil: none
	Lasts   time.Duration // of Caps
	Reports [][]byte      // of all nodes, where Leads
}

// version begins a message. A reader ignores messages of other versions.
const version = 1

var errMessage = errors.New("fair: the message is malformed, or of another version")

// Append appends the report as bytes.
func (r *Report) Append(b []byte) []byte {
	b = appendNumber(append(b, version), r.Left)
	b = appendDemand(b, r.Small)
	b = binary.AppendUvarint(b, uint64(len(r.Named)))
	for id, d := range r.Named {
		b = appendDemand(binary.LittleEndian.AppendUint64(b, uint64(id)), d)
	}
	return b
}

// ParseReport reads what Append has written.
func ParseReport(b []byte) (Report, error) {
	p := parser{left: b}
	p.version()
	r := Report{Left: p.number(), Small: p.demand()}
	n := p.count()
	r.Named = make(map[ID]Demand, n)
	for range n {
		id := p.id()
		r.Named[id] = p.demand()
	}
	return r, p.end()
}

// Append appends the caps as bytes.
func (c *Caps) Append(b []byte) []byte {
	b = appendNumber(append(b, version), c.Level)
	b = binary.AppendUvarint(b, uint64(c.Nodes))
	for _, tokens := range [...]float64{c.Joint.Demand, c.Joint.Share, c.Free} {
		b = appendNumber(b, tokens)
	}
	b = binary.AppendUvarint(b, uint64(len(c.Named)))
	for id, tokens := range c.Named {
		b = appendNumber(binary.LittleEndian.AppendUint64(b, uint64(id)), tokens)
	}
	return b
}

// ParseCaps reads what Append has written.
func ParseCaps(b []byte) (Caps, error) {
	p := parser{left: b}
	p.version()
	c := Caps{Level: p.number(), Nodes: p.count(), Joint: Joint{Demand: p.tokens(), Share: p.tokens()}, Free: p.tokens()}
	n := p.count()
	c.Named = make(map[ID]float64, n)
	for range n {
		id := p.id()
		c.Named[id] = p.tokens()
	}
	p.fault = p.fault || math.IsNaN(c.Level) || c.Level < 0
	return c, p.end()
}

func appendNumber(b []byte, x float64) []byte {
	return binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(x)))
}

func appendDemand(b []byte, d Demand) []byte {
	return appendNumber(appendNumber(appendNumber(b, d.Tokens), d.Usable), d.Weight)
}

// parser reads a message. After a fault it returns zero values.
type parser struct {
	left  []byte
	fault bool
}

func (p *parser) take(n int) []byte {
	if p.fault = p.fault || len(p.left) < n; p.fault {
		return make([]byte, n)
	}
	taken := p.left[:n]
	p.left = p.left[n:]
	return taken
}

func (p *parser) version() { p.fault = p.take(1)[0] != version }

func (p *parser) id() ID { return ID(binary.LittleEndian.Uint64(p.take(8))) }

func (p *parser) number() float64 {
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(p.take(4))))
}

func (p *parser) demand() Demand {
	return Demand{Tokens: p.tokens(), Usable: p.tokens(), Weight: p.tokens()}
}

// tokens reads a number that is finite and not negative.
func (p *parser) tokens() float64 {
	x := p.number()
	if math.IsNaN(x) || math.IsInf(x, 0) || x < 0 {
		p.fault = true
		return 0
	}
	return x
}

// count reads a number of tenants or nodes.
func (p *parser) count() int {
	n, length := binary.Uvarint(p.left)
	if length <= 0 || n > MaxNamed*64 {
		p.fault = true
		return 0
	}
	p.left = p.left[length:]
	return int(n)
}

func (p *parser) end() error {
	if p.fault || len(p.left) > 0 {
		return errMessage
	}
	return nil
}
