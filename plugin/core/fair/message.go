package fair

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math"
	"slices"
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
const version = 2

var errMessage = errors.New("fair: the message is malformed, or of another version")

// Append appends the report as bytes.
func (r *Report) Append(b []byte) []byte {
	b = appendNumbers(append(b, version), r.Left, r.Small.Tokens, r.Small.Usable, r.Small.Weight)
	for id, d := range r.Named {
		b = appendNumbers(appendID(b, id), d.Tokens, d.Usable, d.Weight)
	}
	return b
}

// ParseReport reads what Append has written.
func ParseReport(b []byte) (Report, error) {
	r := Report{Named: map[ID]Demand{}}
	n, err := parse(b, 4, 3, func(id ID, n []float64) { r.Named[id] = Demand{n[0], n[1], n[2]} })
	if err != nil {
		return Report{}, err
	}
	r.Left, r.Small = n[0], Demand{n[1], n[2], n[3]}
	return r, nil
}

// Append appends the caps as bytes.
func (c *Caps) Append(b []byte) []byte {
	b = appendNumbers(append(b, version), c.Level, float64(c.Nodes), c.Joint.Demand, c.Joint.Share, c.Free)
	for id, tokens := range c.Named {
		b = appendNumbers(appendID(b, id), tokens)
	}
	return b
}

// ParseCaps reads what Append has written.
func ParseCaps(b []byte) (Caps, error) {
	c := Caps{Named: map[ID]float64{}}
	n, err := parse(b, 5, 1, func(id ID, n []float64) { c.Named[id] = n[0] })
	if err != nil || !(n[0] >= 0) || n[1] > maxNodes {
		return Caps{}, errMessage
	}
	c.Level, c.Nodes, c.Joint, c.Free = n[0], int(n[1]), Joint{n[2], n[3]}, n[4]
	return c, nil
}

// maxNodes bounds the number of nodes in a message.
const maxNodes = 64_000

func appendID(b []byte, id ID) []byte { return binary.LittleEndian.AppendUint64(b, uint64(id)) }

func appendNumbers(b []byte, numbers ...float64) []byte {
	for _, x := range numbers {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(x)))
	}
	return b
}

// parse reads a message: the version, some numbers, and the id of each named tenant with some numbers about it. All
// numbers but the first must be finite and not negative.
func parse(b []byte, count, each int, named func(id ID, numbers []float64)) (numbers []float64, err error) {
	const sizeOfID, sizeOfNumber = 8, 4
	tenants := len(b) - 1 - count*sizeOfNumber
	size := sizeOfID + each*sizeOfNumber
	if tenants < 0 || tenants%size != 0 || tenants/size > MaxNamed*64 || b[0] != version {
		return nil, errMessage
	}
	b = b[1:]
	read := func(n int) []float64 {
		list := make([]float64, n)
		for i := range list {
			list[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
			b = b[sizeOfNumber:]
		}
		return list
	}
	numbers = read(count)
	amounts := numbers[1:]
	for len(b) > 0 {
		id := ID(binary.LittleEndian.Uint64(b))
		b = b[sizeOfID:]
		values := read(each)
		named(id, values)
		amounts = append(amounts, values...)
	}
	if slices.ContainsFunc(amounts, func(x float64) bool { return !(x >= 0) || math.IsInf(x, 1) }) {
		return nil, errMessage
	}
	return numbers, nil
}
