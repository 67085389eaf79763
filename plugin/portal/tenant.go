package portal

// tenantPages returns the pages of tenants.
func tenantPages() []page { return nil }

// tenantTopics returns the live parts of the pages of tenants.
func tenantTopics() []topic { return nil }
