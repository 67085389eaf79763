package schema

// Tenant holds the settings of one tenant besides its policies and overrides, as a row of the database has it, the REST
// API and the ratelimit command. Each field is declared here alone, as those of Policy are. TenantFields lists them.
//
// An empty text means absent.
type Tenant struct {
	// The tenant, as requests identify it, in at most 128 bytes: a longer name is counted by its hash. Required.
	ID string `json:"id" kong:"required,len_max=128" kong_err:"must have 1 to 128 bytes: write the hash by which a longer name is counted"`

	// The tier of the tenant. Default: the tier that its requests claim, else the plugin config's default.
	Tier string `json:"tier,omitempty" kong:"as=Policy.tier"`

	// The IANA name of its time zone. Default: UTC.
	TimeZone string `json:"time_zone,omitempty" kong:"len_max=64" kong_err:"must be the IANA name of a time zone, such as Europe/Berlin, or left out for UTC" unit:"name"`
}

// Faults returns everything that is wrong with t by itself, in the order of its fields; the paths are their names. The
// checks find what needs more than the schema, as those of Parse do.
func (t Tenant) Faults(checks ...func(Tenant) error) []Fault {
	return tenantModel().faults(t, checks...)
}

// TenantFields returns the fields of a Tenant in the order of their declaration. The caller must not change them.
func TenantFields() []Field[Tenant] { return tenantModel().fields }
