package schema

// Cost is what requests to an endpoint cost, as a row of the database has it, the REST API, files of rows and the
// ratelimit command: an entry of the plugin config's cost table that changes at run time. Each field is declared here
// alone, as those of Policy are. CostFields lists them.
type Cost struct {
	// The namespace of the plugin configs that the cost applies to. Default: default.
	Namespace string `json:"namespace,omitempty" kong:"as=Policy.namespace" default:"default"`

	// The requests that have the cost, as "METHOD /pattern": {param} and a trailing * are wildcards; * as the method
	// matches any method. Required.
	Endpoint string `json:"endpoint" kong:"as=Policy.endpoint" example:"POST /exports"`

	// What a request costs, in tokens, where its policy has no cost of its own and no header of the request has one; 0 is
	// free. Required.
	Cost *int64 `json:"cost,omitempty" kong:"as=Policy.cost" unit:"tokens" example:"50"`
}

// Faults returns everything that is wrong with c by itself, in the order of its fields; the paths are their names. The
// checks find what needs more than the schema, as those of Parse do.
func (c Cost) Faults(checks ...func(Cost) error) []Fault {
	return costModel().faults(c, append([]func(Cost) error{Cost.complete}, checks...)...)
}

// complete returns an error, as Faults, unless endpoint and cost are given: an absent cost must not be taken as free.
func (c Cost) complete() error {
	var faults []Fault
	if c.Endpoint == "" {
		faults = append(faults, Fault{"endpoint", "is required, such as POST /exports"})
	}
	if c.Cost == nil {
		faults = append(faults, Fault{"cost", "is required; 0 makes the requests free"})
	}
	return asError(faults)
}

// CostFields returns the fields of a Cost in the order of their declaration. The caller must not change them.
func CostFields() []Field[Cost] { return costModel().fields }
