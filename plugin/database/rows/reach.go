package rows

import "fmt"

// NodeVersion holds a node and the version that it last reported.
type NodeVersion struct {
	Node    string `json:"node"    doc:"The node as the fleet names it."`
	Version int64  `json:"version" doc:"The version that it last reported; 0: none from Postgres."`
}

// String returns both in words.
func (n NodeVersion) String() string { return fmt.Sprintf("%s (version %d)", n.Node, n.Version) }

// Reach reports which nodes enforce a version. The CLI and the REST API show it in this shape.
type Reach struct {
	Enforced bool          `json:"enforced"   doc:"At least one node is live, all live nodes enforce the version, and no node is silent."`
	Live     int           `json:"live_nodes" doc:"Nodes that have reported within 15 s."`
	Behind   []NodeVersion `json:"behind"     doc:"The live nodes that do not enforce it yet."`
	Silent   []NodeVersion `json:"silent"     doc:"The nodes that have neither left nor reported within 15 s. They may still admit requests by older policies, and no write waits for them. One whose process has ended can be forgotten."`
}

// Reach reports which nodes enforce a version.
func (f Fleet) Reach(version int64) Reach {
	return Reach{f.Enforces(version), f.Live(), versionsOf(f.Behind(version)), versionsOf(f.Silent())}
}

// versionsOf returns the nodes without their details; never nil.
func versionsOf(nodes []Node) []NodeVersion {
	versions := make([]NodeVersion, 0, len(nodes))
	for _, n := range nodes {
		versions = append(versions, NodeVersion{n.Node, n.Version})
	}
	return versions
}
