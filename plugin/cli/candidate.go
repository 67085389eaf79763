package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
)

const candidateAbout = `A candidate is a set of changes to the active policies, which is tried before it is promoted.
docs/rollout.md describes how.`

var candidateCommands = []*command{
	{
		words: "candidate create", args: "NAME", brief: "open a candidate, which changes no policy yet", least: 1, most: 1,
		about: candidateAbout + ` At most one is open. A name is used once.`,
		define: func(c *call) action {
			return c.writes(func(ctx context.Context, s *rows.DB, by rows.Change) (written, error) {
				row, version, err := s.CreateCandidate(ctx, by, c.arg())
				return written{What: "created candidate " + c.arg(), Version: version, Row: row}, err
			})
		},
	},
	candidatePut,
	candidateDelete,
	{
		words: "candidate list", brief: "list candidates, the newest first",
		define: func(c *call) action {
			return c.reads(func(ctx context.Context, s *rows.DB) error {
				list, err := s.Candidates(ctx)
				if err != nil {
					return err
				}
				return c.print(listed(list), func(out *page) { candidateList.add(out, list...) })
			})
		},
	},
	{
		words: "candidate show", args: "[NAME]", brief: "show the open candidate, or the one of a name", most: 1,
		define: func(c *call) action {
			return c.reads(func(ctx context.Context, s *rows.DB) error {
				d, err := s.CandidateDiff(ctx, c.arg())
				if err != nil {
					return err
				}
				return c.print(d, func(out *page) {
					candidatePage(out, &d.Candidate)
					candidateChanges(out, &d)
				})
			})
		},
	},
	{
		words: "candidate diff", args: "[NAME]", most: 1,
		brief: "show what a candidate changes, and how the active policies have moved since its base",
		define: func(c *call) action {
			return c.reads(func(ctx context.Context, s *rows.DB) error {
				d, err := s.CandidateDiff(ctx, c.arg())
				if err != nil {
					return err
				}
				return c.print(d, func(out *page) { candidateChanges(out, &d) })
			})
		},
	},
	candidateReport,
	candidateAssign,
	candidatePromote,
	{
		words: "candidate rollback", args: "NAME", least: 1, most: 1,
		brief: "restore the policies that the promotion of a candidate has replaced, in one change",
		about: `If one of them has changed since the promotion, rollback shows the difference and writes nothing.`,
		define: func(c *call) action {
			return c.writes(func(ctx context.Context, s *rows.DB, by rows.Change) (written, error) {
				d, version, err := s.RollBackCandidate(ctx, by, c.arg())
				return candidateWritten("rolled back", c.arg(), d, version), c.showMoved(err)
			})
		},
	},
	candidateRebase,
	{
		words: "candidate drop", args: "NAME", brief: "end an open candidate without an effect", least: 1, most: 1,
		define: func(c *call) action {
			return c.writes(func(ctx context.Context, s *rows.DB, by rows.Change) (written, error) {
				row, version, err := s.DropCandidate(ctx, by, c.arg())
				return written{What: "dropped candidate " + c.arg(), Version: version, Row: row}, err
			})
		},
	},
}

var candidatePut = &command{
	words: "candidate put", args: "NAME [POLICY]", least: 1, most: 2,
	brief: "make a candidate create or replace a policy, or those in a file",
	about: `The whole policy is replaced, as by ratelimit policy put. With --file the candidate puts each policy of the
file, which is that of ratelimit apply; policies that are not in the file stay. A policy that is put as it is active is
no change.

  ratelimit candidate put july daily --tier gold --limit 500 --window 1d --reason "half of it"
  ratelimit candidate put july -f policies.yaml --reason "as suggested"`,
	define: func(c *call) action {
		key, fields, d := c.matchFlags(), c.limitFlags(), new(document)
		file := c.flags.StringP("file", "f", "", "a `file` of policies to put (- reads standard input)")
		force, config := c.forceFlag(), c.knownConfigFlag()
		c.check(func() error {
			if (*file == "") != (len(c.args) == 2) {
				return wrong("give either POLICY or --file")
			}
			if *file == "" {
				key.Name = c.args[1]
				fields.setKey(*key)
				d.set.Policies = []rows.Policy{fields.Policy}
				return nil
			}
			err := c.readDocument(d, *file)
			if err == nil && len(d.set.Policies) == 0 {
				err = wrong("--file: %s has no policies", *file)
			}
			return err
		})
		return c.writes(func(ctx context.Context, s *rows.DB, by rows.Change) (written, error) {
			for i := range d.set.Policies {
				if p := &d.set.Policies[i]; p.Namespace == "" {
					p.Namespace = d.set.Namespace
				}
			}
			review, err := s.ReviewCandidate(ctx, config.plan, c.arg(), d.set.Policies...)
			if err == nil {
				err = errors.Join(unforced(review, *force)...)
			}
			if err != nil {
				return written{}, err
			}
			c.warnAll(review.Warnings)
			done, version, err := s.PutCandidatePolicies(ctx, by, c.arg(), d.set.Policies...)
			if err != nil && *file != "" {
				err = d.locate(err)
			}
			return candidateWritten("put into", c.arg(), done, version), err
		})
	},
}

var candidateDelete = &command{
	words: "candidate delete", args: "NAME POLICY", least: 2, most: 2,
	brief: "make a candidate delete an active policy, or forget its own",
	about: `With --undo the candidate leaves the policy as it is active.`,
	define: func(c *call) action {
		key := c.matchFlags()
		undo := c.flags.Bool("undo", false, "take back what the candidate changes in the policy")
		return c.writes(func(ctx context.Context, s *rows.DB, by rows.Change) (written, error) {
			key.Name = c.args[1]
			if *undo {
				version, err := s.UndoCandidatePolicy(ctx, by, c.arg(), *key)
				return written{What: fmt.Sprintf("candidate %s leaves %s as it is", c.arg(), key), Version: version}, err
			}
			d, version, err := s.DeleteCandidatePolicy(ctx, by, c.arg(), *key)
			return candidateWritten("put into", c.arg(), d, version), err
		})
	},
}

var candidateAssign = &command{
	words: "candidate assign", args: "NAME", brief: "enforce a candidate for some tenants", least: 1, most: 1,
	about: `For tenants that are assigned, the candidate decides in place of the active policies, on the same buckets. A
percentage takes tenants by a hash of their names: a larger one keeps those of a smaller one. A candidate that promote
denies without --force is not enforced for more tenants without it either.

  ratelimit candidate assign july --percent 5 --reason "first day"
  ratelimit candidate assign july --tenant acme --reason "they asked"`,
	define: func(c *call) action {
		var a rows.Assignment
		c.flags.Func("percent", "enforce it for this `percentage` of all tenants, 0 to 100", func(text string) error {
			percent := 0
			a.Percent = new(int64)
			if err := process.ParseInt(text, 0, &percent); err != nil || percent > 100 {
				return errors.New("must be a whole number from 0 to 100")
			}
			*a.Percent = int64(percent)
			return nil
		})
		c.flags.StringArrayVar(&a.Add, "tenant", nil, "also enforce it for this `tenant`, can be repeated")
		c.flags.StringArrayVar(&a.Remove, "remove", nil, "take back the assignment of this `tenant`, can be repeated")
		approve := c.approvalFlags()
		c.check(func() error {
			if a.Percent == nil && len(a.Add)+len(a.Remove) == 0 {
				return wrong("give --percent, --tenant or --remove")
			}
			return nil
		})
		return c.writes(func(ctx context.Context, s *rows.DB, by rows.Change) (written, error) {
			a.Approval = approve()
			row, version, err := s.AssignCandidate(ctx, by, c.arg(), a)
			if err != nil {
				return written{}, err
			}
			c.warnOfWrite(s.AssignmentWarnings(ctx, a))
			return written{
				What:    fmt.Sprintf("candidate %s is enforced for %s", row.Name, assigned(&row)),
				Version: version, Row: row,
			}, nil
		})
	},
}

var candidatePromote = &command{
	words: "candidate promote", args: "NAME", least: 1, most: 1,
	brief: "apply the changes of a candidate to the active policies, in one change",
	about: `If policies have changed since its base, promote shows the difference and writes nothing: look at ratelimit
candidate diff, and rebase it. ratelimit candidate rollback takes a promotion back.

As with ratelimit policy put, a limit shared by all tenants that is lower than the limit of a single tenant is promoted
only with --force.`,
	define: func(c *call) action {
		var seen countFlag
		c.flags.Func("if-version", "promote only if its policies have not changed since this `version`, as show has it",
			seen.Set)
		approve := c.approvalFlags()
		return c.writes(func(ctx context.Context, s *rows.DB, by rows.Change) (written, error) {
			p := rows.Promotion{UnchangedSince: seen.n, Approval: approve()}
			d, version, err := s.PromoteCandidate(ctx, by, c.arg(), p)
			return candidateWritten("promoted", c.arg(), d, version), c.showMoved(err)
		})
	},
}

var candidateRebase = &command{
	words: "candidate rebase", args: "NAME", least: 1, most: 1,
	brief: "make the active policies the base of a candidate, after they have moved",
	about: `Without --version, it shows how they have moved and changes nothing.`,
	define: func(c *call) action {
		var seen countFlag
		c.flags.Func("version", "the `version` of the active policies that you have compared", seen.Set)
		return c.writes(func(ctx context.Context, s *rows.DB, by rows.Change) (written, error) {
			if seen.n == 0 {
				return written{}, c.showRebase(ctx, s)
			}
			row, version, err := s.RebaseCandidate(ctx, by, c.arg(), seen.n)
			return written{What: "rebased candidate " + c.arg(), Version: version, Row: row}, c.showMoved(err)
		})
	},
}

// showRebase shows how policies have moved, and returns how to go on.
func (c *call) showRebase(ctx context.Context, s *rows.DB) error {
	d, err := s.CandidateDiff(ctx, c.arg())
	if err != nil {
		return err
	}
	if err := c.print(d, func(out *page) { candidateChanges(out, &d) }); err != nil {
		return err
	}
	return wrong("nothing was changed: use --version %d to make these policies the base", d.Version)
}

// candidateWritten returns the result of a command that changes policies by a candidate.
func candidateWritten(done, candidate string, d rows.Diff, version int64) written {
	return written{
		What: done + " candidate " + candidate, Version: version, Diff: d,
		lines: func(out *page) { writeDiff(out, rows.SetDiff{Diff: d}) },
	}
}

// showMoved shows the difference that an error reports, and returns the error.
func (c *call) showMoved(err error) error {
	moved := new(rows.MovedError)
	if !errors.As(err, &moved) {
		return err
	}
	shown := struct {
		Moved   rows.Diff `json:"moved"`
		Version int64     `json:"version"`
	}{moved.Diff, moved.Version}
	return errors.Join(err, c.print(shown, func(out *page) { writeDiff(out, rows.SetDiff{Diff: moved.Diff}) }))
}

var candidateList = listing[rows.Candidate]{
	"NAME|STATE|CREATED|BY|POLICIES|BASE|ENFORCED FOR|ENDED|REASON",
	func(c rows.Candidate) []any {
		tenants := ""
		if c.State == rows.CandidateOpen {
			tenants = assigned(&c)
		}
		return []any{
			c.Name, c.State, c.CreatedAt, c.CreatedBy, c.Policies, c.BaseVersion, tenants, timeText(c.EndedAt), c.Reason,
		}
	},
}

// assigned returns for whom a candidate is enforced, in words.
func assigned(c *rows.Candidate) string {
	var parts []string
	if c.Percent > 0 {
		parts = append(parts, fmt.Sprintf("%d %% of all tenants", c.Percent))
	}
	if len(c.Tenants) > 0 {
		parts = append(parts, strings.Join(c.Tenants, ", "))
	}
	return orDefault(strings.Join(parts, " and "), "no tenant")
}

// candidatePage adds the state of a candidate.
func candidatePage(out *page, c *rows.Candidate) {
	out.line("candidate %s is %s", c.Name, strings.ReplaceAll(c.State, "_", " "))
	out.line("created at %s by %s: %s", timeText(c.CreatedAt), c.CreatedBy, c.Reason)
	if c.State != rows.CandidateOpen {
		out.line("ended at %s by %s: %s", timeText(c.EndedAt), c.EndedBy, c.EndReason)
		return
	}
	out.line("enforced for %s; its policies are of version %d", assigned(c), c.PoliciesAt)
}

// candidateChanges adds what a candidate changes, and how its base has moved.
func candidateChanges(out *page, d *rows.CandidateDiff) {
	writeDiff(out, rows.SetDiff{Diff: d.Diff})
	if d.Candidate.State != rows.CandidateOpen {
		return
	}
	if d.Diff.Empty() {
		out.line("it changes nothing: put a policy first, before it can be promoted")
	} else if d.Moved.Empty() {
		out.line("it can be promoted: no policy has changed since version %d", d.Candidate.BaseVersion)
	}
	if d.Moved.Empty() {
		return
	}
	out.gap()
	out.line("it cannot be promoted before a rebase: since version %d, up to %d, these have changed",
		d.Candidate.BaseVersion, d.Version)
	writeDiff(out, rows.SetDiff{Diff: d.Moved})
}
