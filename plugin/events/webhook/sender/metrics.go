package sender

// Stats counts what a process has done as the sender.
type Stats struct {
	Leading    bool  `metric:"webhook_leader"`
	Delivered  int64 `metric:"webhook_tries_total result=delivered"`
	Failed     int64 `metric:"webhook_tries_total result=failed"`   // tries after which the delivery is tried again
	GivenUp    int64 `metric:"webhook_tries_total result=given_up"` // deliveries
	Dropped    int64 `metric:"webhook_events_dropped_total"`        // events that did not fit a queue, or were given up
	HookCounts `metric:""`
}

// HookCounts counts webhooks by state, and the deliveries that wait; 0 unless this process sends.
type HookCounts struct {
	Healthy  int64 `metric:"webhook_subscriptions state=healthy"`
	Failing  int64 `metric:"webhook_subscriptions state=failing"`
	Disabled int64 `metric:"webhook_subscriptions state=disabled"`
	Waiting  int64 `metric:"webhook_deliveries_waiting"`
}

// Stats returns what this process has done.
func (s *Sender) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// count changes the counters.
func (s *Sender) count(change func(*Stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.stats)
}
