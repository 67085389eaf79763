package pgstore_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

func TestAuditTellsEachChangeNewestFirst(t *testing.T) {
	s, _ := open(t)
	p, _ := put(t, s, daily())
	p.Limit = 2000
	put(t, s, p)
	bob := pgstore.Change{Actor: "bob", Reason: "no longer sold"}
	if _, err := s.DeletePolicy(t.Context(), bob, p.Key(), 0); err != nil {
		t.Fatal(err)
	}
	entries, next, err := s.Audit(t.Context(), pgstore.AuditFilter{Kind: "policy"})
	if err != nil || len(entries) != 3 || next != 0 {
		t.Fatalf("the audit is %v, then %d (%v), want 3 entries", entries, next, err)
	}
	for i, want := range []struct{ operation, actor, reason string }{
		{"delete", bob.Actor, bob.Reason}, {"update", ann.Actor, ann.Reason}, {"insert", ann.Actor, ann.Reason},
	} {
		e := entries[i]
		if e.Operation != want.operation || e.Actor != want.actor || e.Reason != want.reason || e.Version != int64(3-i) || e.At.IsZero() {
			t.Errorf("entry %d is %+v, want %+v in version %d", i, e, want, 3-i)
		}
	}
	var before, after struct{ Limit int64 }
	if err := json.Unmarshal(entries[1].Before, &before); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(entries[1].After, &after); err != nil {
		t.Fatal(err)
	}
	if before.Limit != 1000 || after.Limit != 2000 || entries[0].After != nil || entries[2].Before != nil {
		t.Errorf("limit %d became %d; after the delete there is %s, before the insert %s",
			before.Limit, after.Limit, entries[0].After, entries[2].Before)
	}
}

func TestActionIsAuditedAndMakesNoVersion(t *testing.T) {
	s, _ := open(t)
	put(t, s, daily())
	reset := pgstore.Action{Operation: "reset", Key: "daily", Tenant: "acme", Details: json.RawMessage(`{"buckets": 3}`)}
	if _, err := s.Record(t.Context(), ann, reset); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Record(t.Context(), ann, pgstore.Action{Operation: "reset"}); err != nil {
		t.Fatal(err)
	}
	entries, _, err := s.Audit(t.Context(), pgstore.AuditFilter{Kind: "action", Tenant: "acme"})
	if err != nil || len(entries) != 1 {
		t.Fatalf("the audit has %v (%v), want one action for acme", entries, err)
	}
	e := entries[0]
	if e.Operation != "reset" || e.Key != "daily" || e.Actor != "ann" || e.Login != "postgres" || e.Reason != ann.Reason ||
		e.Version != 1 || string(e.After) != string(reset.Details) || e.Before != nil {
		t.Errorf("the action is told as %+v", e)
	}
	_, err = s.Record(t.Context(), pgstore.Change{Actor: "ann"}, reset)
	wantInvalid(t, "an action without reason", err, "reason")
	_, err = s.Record(t.Context(), ann, pgstore.Action{Key: "daily"})
	wantInvalid(t, "an action that is none", err, "operation")
}

func TestActionIsRecordedAgainUntilItIsDone(t *testing.T) {
	s, _ := open(t)
	reset := pgstore.Action{Operation: "reset", Details: json.RawMessage(`{"buckets": 3}`)}
	for i, replayed := range []bool{false, false, true} {
		c := once("k", "a request")
		told, err := s.Record(t.Context(), c, reset)
		if err != nil || c.Idempotency.Replayed != replayed || !same(t, told, reset) {
			t.Fatalf("time %d: %+v, replayed %v (%v)", i, told, c.Idempotency.Replayed, err)
		}
		if i == 1 {
			err = s.Done(t.Context(), c, reset)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Record(t.Context(), once("k", "another"), reset); !errors.As(err, new(*pgstore.KeyReusedError)) {
		t.Errorf("another action under the key: %v", err)
	}
	if err := s.Done(t.Context(), ann, reset); err != nil {
		t.Errorf("without a key: %v", err)
	}
	if _, entries := versions(t, s); entries != 2 {
		t.Errorf("%d audit entries, want those of the two that were not replays", entries)
	}
}

func TestAuditIsReadInPagesAndByFilter(t *testing.T) {
	s, _ := open(t)
	for i := range 5 {
		if _, _, err := s.SetTenant(t.Context(), ann, pgstore.Tenant{ID: fmt.Sprint("t", i)}); err != nil {
			t.Fatal(err)
		}
	}
	var keys []string
	filter := pgstore.AuditFilter{Max: 2}
	for {
		page, next, err := s.Audit(t.Context(), filter)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page {
			keys = append(keys, e.Key)
		}
		if next == 0 {
			break
		}
		filter.Before = next
	}
	if want := "[t4 t3 t2 t1 t0]"; fmt.Sprint(keys) != want {
		t.Errorf("the pages have %v, want %s", keys, want)
	}
	for want, f := range map[int]pgstore.AuditFilter{
		1: {Tenant: "t3", Kind: "tenant", Key: "t3", Actor: "ann", Since: time.Unix(0, 0), Until: time.Now().Add(time.Hour)},
		0: {Since: time.Now().Add(time.Hour)},
	} {
		if found, _, err := s.Audit(t.Context(), f); err != nil || len(found) != want {
			t.Errorf("%+v selects %v (%v), want %d", f, found, err, want)
		}
	}
}
