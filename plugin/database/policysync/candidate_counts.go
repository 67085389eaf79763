package policysync

import (
	"context"
	"fmt"
	"time"
)

// CandidateSink stores what nodes count about a candidate, over a connection of its own. It implements the Sink of
// package candidate.
type CandidateSink struct{ reportSession }

// NewCandidateSink returns a sink that has not connected yet.
func NewCandidateSink(source Source) *CandidateSink {
	return &CandidateSink{reportSession{source: source}}
}

const reportCandidateSQL = `SELECT rate_limiter.report_candidate($1, $2, $3, $4, $5)`

// Report stores a batch that began age ago. A batch that is stored already stays as it is.
func (c *CandidateSink) Report(
	ctx context.Context, source, candidate string, seq int64, age time.Duration, rows []byte,
) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	called := time.Now()
	err := c.connect(ctx)
	if err == nil {
		_, err = c.conn.Exec(ctx, reportCandidateSQL, source, candidate, seq, age+time.Since(called), string(rows))
	}
	if err == nil {
		return nil
	}
	return c.failed(ctx, fmt.Errorf("report a candidate: %w", err))
}
