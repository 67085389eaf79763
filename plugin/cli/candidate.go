package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const (
	candidatesPath = "/v1/ratelimit/candidates"
	candidatePath  = candidatesPath + "/{}"
)

const candidateAbout = `A candidate is a set of changes to the active policies, which is tried before it is promoted.
docs/rollout.md describes how.`

var candidateCommands = []*command{
	{
		words: "candidate create", args: "NAME", brief: "open a candidate, which changes no policy yet",
		about: candidateAbout + ` At most one is open. A name is used once.`,
		define: func(c *call) action {
			return c.writes(func() change {
				create := c.changeCandidate("created", "", nil, object{"name": c.arg()})
				create.path = candidatesPath
				return create
			})
		},
	},
	candidatePut,
	candidateDelete,
	{
		words: "candidate list", brief: "list candidates, the newest first",
		define: func(c *call) action { return showsItems[rows.Candidate](c, candidatesPath, nil) },
	},
	{
		words: "candidate show", args: "[NAME]", brief: "show the open candidate, or the one of a name",
		define: func(c *call) action { return showsCandidate(c, "/diff", nil, candidatePage) },
	},
	{
		words: "candidate diff", args: "[NAME]",
		brief:  "show what a candidate changes, and how the active policies have moved since its base",
		define: func(c *call) action { return showsCandidate(c, "/diff", nil, candidateChanges) },
	},
	candidateReport,
	candidateAssign,
	candidatePromote,
	{
		words: "candidate rollback", args: "NAME",
		brief: "restore the policies that the promotion of a candidate has replaced, in one change",
		about: `If one of them has changed since the promotion, rollback names those that have changed, and how, on
standard error, and writes nothing.`,
		define: func(c *call) action {
			query := c.revisionFlag(url.Values{})
			return c.writes(func() change { return c.changeCandidate("rolled back", "/rollback", query, object{}) })
		},
	},
	candidateRebase,
	{
		words: "candidate drop", args: "NAME", brief: "end an open candidate without an effect",
		define: func(c *call) action {
			query := c.revisionFlag(url.Values{})
			return c.writes(func() change {
				what := "dropped candidate " + c.arg()
				return change{method: http.MethodDelete, path: c.path(candidatePath), query: query, what: what}
			})
		},
	},
}

var candidatePut = &command{
	words: "candidate put", args: "NAME [POLICY]",
	brief: "make a candidate create or replace a policy, or those in a file",
	about: `The whole policy is replaced, as by ratelimit policy put. With --file the candidate puts each policy of the
file, which is that of ratelimit apply; policies that are not in the file stay. A policy that is put as it is active is
no change.

  ratelimit candidate put july daily --tier gold --limit 500 --window 1d --reason "half of it"
  ratelimit candidate put july -f policies.yaml --reason "as suggested"`,
	define: func(c *call) action {
		key, p, d := c.matchFlags(), c.limitFlags(), new(document)
		file := c.flags.StringP("file", "f", "", "a `file` of policies to put (- reads standard input)")
		force := c.revisionFlag(url.Values{})
		c.reviewFlags(force)
		c.check(func() error {
			if (*file == "") != (len(c.args) == 2) {
				return wrong("give either POLICY or --file")
			}
			if *file == "" {
				key.Name = c.args[1]
				setKey(p, *key)
				d.set.Policies = []rows.Policy{*p}
				return nil
			}
			err := c.readDocument(d, "--file", *file)
			if err == nil && len(d.set.Policies) == 0 {
				err = wrong("--file: %s has no policies", *file)
			}
			return err
		})
		return c.writes(func() change {
			for i := range d.set.Policies {
				if p := &d.set.Policies[i]; p.Namespace == "" {
					p.Namespace = d.set.Namespace
				}
			}
			put := c.changeCandidate("put into", "/policies", force, object{"policies": d.set.Policies})
			if *file != "" {
				put.fault = d.locateProblem
			}
			return put
		})
	},
}

var candidateDelete = &command{
	words: "candidate delete", args: "NAME POLICY",
	brief: "make a candidate delete an active policy, or forget its own",
	about: `With --undo the candidate leaves the policy as it is active.`,
	define: func(c *call) action {
		key, over := c.matchFlags(), c.revisionFlag(url.Values{})
		undo := c.flags.Bool("undo", false, "take back what the candidate changes in the policy")
		return c.writes(func() change {
			key.Name = c.args[1]
			query := keyQuery(*key)
			query.Set("policy", key.Name)
			query.Del("name")
			maps.Copy(query, over)
			remove := c.changeCandidate("put into", "/policies", query, nil)
			remove.method = http.MethodDelete
			if *undo {
				query.Set("undo", "true")
				remove.what = fmt.Sprintf("candidate %s leaves %s as it is", c.arg(), key)
			}
			return remove
		})
	},
}

var candidateAssign = &command{
	words: "candidate assign", args: "NAME", brief: "enforce a candidate for some tenants",
	about: `For tenants that are assigned, the candidate decides in place of the active policies, on the same buckets. A
percentage takes tenants by a hash of their names: a larger one keeps those of a smaller one. A candidate that promote
denies without --force is not enforced for more tenants without it either.

  ratelimit candidate assign july --percent 5 --reason "first day"
  ratelimit candidate assign july --tenant acme --reason "they asked"`,
	define: func(c *call) action {
		percent, add, remove := -1, []string(nil), []string(nil)
		c.wholeFlag(&percent, 0, 100, "percent", "enforce it for this `percentage` of all tenants, 0 to 100")
		c.flags.StringArrayVar(&add, "tenant", nil, "also enforce it for this `tenant`, can be repeated")
		c.flags.StringArrayVar(&remove, "remove", nil, "take back the assignment of this `tenant`, can be repeated")
		force := c.revisionFlag(url.Values{})
		c.reviewFlags(force)
		c.wrongIf(func() bool { return percent < 0 && len(add)+len(remove) == 0 },
			"give --percent, --tenant or --remove")
		return c.writes(func() change {
			assigns := object{"add": add, "remove": remove}
			if percent >= 0 {
				assigns["percent"] = percent
			}
			r := c.changeCandidate("assigned", "/assign", force, assigns)
			r.read = func(_ map[string]json.RawMessage, done *written) error {
				var row rows.Candidate
				err := json.Unmarshal(done.Row.(json.RawMessage), &row)
				done.What = fmt.Sprintf("candidate %s is enforced for %d %% of all tenants and %s", row.Name, row.Percent,
					cmp.Or(strings.Join(row.Tenants, ", "), "no other"))
				return err
			}
			return r
		})
	},
}

var candidatePromote = &command{
	words: "candidate promote", args: "NAME",
	brief: "apply the changes of a candidate to the active policies, in one change",
	about: `If policies have changed since its base, promote names those that have changed, and how, on standard error,
and writes nothing: look at ratelimit candidate diff, and rebase it. ratelimit candidate rollback takes a promotion
back.

As with ratelimit policy put, a limit shared by all tenants that is lower than the limit of a single tenant is promoted
only with --force.`,
	define: func(c *call) action {
		var seen int64
		c.flags.Func("if-version", "promote only if its policies have not changed since this `version`, as show has it",
			reads(parseCount, &seen))
		force := c.revisionFlag(url.Values{})
		c.reviewFlags(force)
		return c.writes(func() change {
			return c.changeCandidate("promoted", "/promote", force, object{"if_version": seen})
		})
	},
}

var candidateRebase = &command{
	words: "candidate rebase", args: "NAME",
	brief: "make the active policies the base of a candidate, after they have moved",
	about: `Without --version, it shows how they have moved and changes nothing.`,
	define: func(c *call) action {
		var seen int64
		query := c.revisionFlag(url.Values{})
		c.flags.Func("version", "the `version` of the active policies that you have compared", reads(parseCount, &seen))
		return c.writesFound(func(ctx context.Context, rest *answers.Client) (change, error) {
			if seen == 0 {
				return change{}, c.showRebase(ctx, rest)
			}
			return c.changeCandidate("rebased", "/rebase", query, object{"version": seen}), nil
		})
	},
}

// showRebase shows how policies have moved, and returns how to go on.
func (c *call) showRebase(ctx context.Context, rest *answers.Client) error {
	var d rows.CandidateDiff
	if err := rest.Get(ctx, c.path(candidatePath+"/diff"), nil, &d); err != nil {
		return err
	}
	if err := c.print(d, func(out *page) { candidateChanges(out, &d) }); err != nil {
		return err
	}
	return wrong("nothing was changed: use --version %d to make these policies the base", d.Version)
}

// showsCandidate defines the flags of a command that shows an answer about a candidate, and returns what it does.
func showsCandidate[T any](c *call, at string, query url.Values, show func(out *page, answer *T)) action {
	return c.asks(func(ctx context.Context, rest *answers.Client) error {
		path, err := c.openCandidate(ctx, rest)
		var answer T
		if err == nil {
			err = rest.Get(ctx, path+at, query, &answer)
		}
		if err != nil {
			return err
		}
		if show == nil {
			return c.print(&answer, nil)
		}
		return c.print(&answer, func(out *page) { show(out, &answer) })
	})
}

var errNoCandidate = errors.New("an open candidate does not exist")

// openCandidate returns the path of the candidate that the argument names; without one, of the open one.
func (c *call) openCandidate(ctx context.Context, rest *answers.Client) (string, error) {
	if c.arg() != "" {
		return c.path(candidatePath), nil
	}
	var found answers.CandidateList
	if err := rest.Get(ctx, candidatesPath, nil, &found); err != nil {
		return "", err
	}
	for _, candidate := range found.Items {
		if candidate.State == rows.CandidateOpen {
			return candidatesPath + "/" + answers.PathSegment(candidate.Name), nil
		}
	}
	return "", errNoCandidate
}

// changeCandidate returns a change of the candidate that the argument names, or of policies by it.
func (c *call) changeCandidate(done, operation string, query url.Values, body object) change {
	r := change{
		method: http.MethodPost, path: c.path(candidatePath + operation), query: query,
		what: done + " candidate " + c.arg(), row: "candidate",
	}
	if body != nil {
		r.body = body
	}
	return r
}

// candidatePage adds the state of a candidate, and what it changes.
func candidatePage(out *page, d *rows.CandidateDiff) {
	out.show(d.Candidate)
	out.gap()
	candidateChanges(out, d)
}

// candidateChanges adds what a candidate changes, and how its base has moved.
func candidateChanges(out *page, d *rows.CandidateDiff) {
	writeDiff(out, &rows.SetDiff{Diff: d.Diff})
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
	writeDiff(out, &rows.SetDiff{Diff: d.Moved})
}

var candidateReport = &command{
	words: "candidate report", args: "[NAME]",
	brief: "show which requests a candidate would answer differently, by tenant, endpoint and policy",
	about: `Nodes count requests of tenants for which the candidate is not enforced, and report every 5 seconds. SEEN is
how much of a policy's window the candidate has seen: before 1 it may deny more than the report shows. A row without a
policy counts requests, whichever policy denies them; the other rows count what one policy answers.

  ratelimit candidate report july --tenant acme`,
	define: func(c *call) action {
		return showsCandidate[rows.CandidateReport](c, "/report", c.queryFlags(rows.CandidateReportFilter{}), nil)
	},
}
