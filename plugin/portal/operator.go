package portal

// operatorPages returns the pages of the console.
func operatorPages() []page { return nil }

// operatorTopics returns the live parts of the console.
func operatorTopics() []topic { return nil }
