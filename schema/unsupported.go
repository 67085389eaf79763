package schema

import "fmt"

// unsupported refuses what the published schema already has but this version cannot do. The schema has it from the
// start so that configs need no change of form later; accepting it silently would promise what does not happen.
func (c Config) unsupported() []Fault {
	var faults []Fault
	failMode := func(path, mode string) {
		if mode == FailOpen || mode == FailClosed {
			faults = append(faults, Fault{path, fmt.Sprintf("%s is not available in this version: use local", mode)})
		}
	}
	failMode("fail_mode", c.FailMode)
	for _, l := range c.limits() {
		failMode(l.path+".fail_mode", l.FailMode)
	}
	return faults
}
