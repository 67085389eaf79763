package answers

import "time"

// OverridePreview reports what an override would change.
type OverridePreview struct {
	At      time.Time     `json:"at"                doc:"The time that both states describe: now, or the begin of the override."`
	Begin   time.Time     `json:"starts_at,omitzero"  doc:"When the override would begin. Absent: at once."`
	End     time.Time     `json:"expires_at,omitzero" doc:"When it would end. Absent: it is permanent."`
	Applied bool          `json:"applied"           doc:"The override would have an effect."`
	Why     string        `json:"why"               doc:"What the override would do, or why it has no effect."`
	Verdict string        `json:"verdict,omitempty" doc:"What would go before all limits. Absent: limits decide." enum:"banned,exempt"`
	Changes []LimitChange `json:"changes"           doc:"The limits that the override would change."`
	Warnings
}

// LimitChange is a limit before and with an override.
type LimitChange struct {
	Policy    string       `json:"policy"`
	Endpoint  string       `json:"endpoint,omitempty" doc:"The requests that the policy covers; absent: all that have no other limit of this name."`
	Scope     string       `json:"scope"              example:"tenant"`
	Algorithm string       `json:"algorithm"`
	Before    LimitNumbers `json:"before"`
	After     LimitNumbers `json:"after"`
}

// LimitNumbers are the numbers of a limit that an override can change.
type LimitNumbers struct {
	Limit      int64 `json:"limit"       doc:"Tokens that a window allows."`
	WindowSize int64 `json:"window_size" doc:"Seconds."`
	Burst      int64 `json:"burst"       doc:"The most tokens at once."`
}
