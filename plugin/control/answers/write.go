// Package answers has the answers of the REST API as types, which the API encodes, and the portal decodes. Answers that
// are rows of the database have the types of package rows.
package answers

import "github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"

// Fleet has the current version and what each node enforces.
type Fleet struct {
	rows.Fleet
	rows.Reach
}

// Warnings are about parts of a write that may be mistakes, and about nodes that could not be read after it.
type Warnings struct {
	Warnings []string `json:"warnings,omitempty" doc:"The write has succeeded. Likely mistakes: an override of a tenant that was never seen, the name of a tier or a policy that neither the plugin's config nor the database has, a namespace that is not the config's, a limit of one tenant that is above one of all tenants, or one that cannot hold the cost of a request. Also, that the nodes could not be read after a write with wait."`
}

// Written reports when a change is in force, with warnings of likely mistakes.
type Written struct {
	Version     int64        `json:"version"               doc:"The version of the policies that includes the change."`
	Enforcement *Enforcement `json:"enforcement,omitempty" doc:"Present if the request waited, and the nodes could be read."`
	Warnings
}

// Enforcement reports which nodes enforce a version.
type Enforcement struct {
	Version int64 `json:"version"`
	rows.Reach
}
