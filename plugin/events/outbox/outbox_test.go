package outbox

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// consumer is the one of the tests.
const consumer = "test"

func notice(id string) events.Event {
	return events.Event{
		ID: id, Source: events.Control, Type: events.QuotaThreshold, Time: time.Unix(1_790_000_000, 0), Tenant: "acme",
		Data: json.RawMessage(`{"n": 1}`),
	}
}

func add(t *testing.T, tx pgx.Tx, ids ...string) {
	t.Helper()
	var all []events.Event
	for _, id := range ids {
		all = append(all, notice(id))
	}
	require.NoError(t, Add(t.Context(), tx, all...))
}

func begin(t *testing.T, pool *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	return tx
}

func commit(t *testing.T, tx pgx.Tx) {
	t.Helper()
	require.NoError(t, tx.Commit(t.Context()))
}

// addAll adds events in a transaction of their own.
func addAll(t *testing.T, pool *pgxpool.Pool, ids ...string) {
	t.Helper()
	tx := begin(t, pool)
	add(t, tx, ids...)
	commit(t, tx)
}

// consume reads what is new, moves the cursor, and returns the ids.
func consume(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	all, err := Read(t.Context(), pool, consumer, 1000)
	require.NoError(t, err)
	var ids []string
	for _, e := range all {
		ids = append(ids, e.ID)
	}
	if len(all) > 0 {
		move(t, pool, all[len(all)-1].Position)
	}
	return strings.Join(ids, " ")
}

func move(t *testing.T, pool *pgxpool.Pool, position int64) {
	t.Helper()
	tx := begin(t, pool)
	require.NoError(t, Move(t.Context(), tx, consumer, position))
	commit(t, tx)
}

func TestAnEventOfATransactionThatCommitsLateIsReadAfterThoseOfLaterOnes(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	late, early := begin(t, pool), begin(t, pool)
	add(t, late, "late-1")
	add(t, early, "early-1", "early-2")
	add(t, late, "late-2")
	commit(t, early)
	assert.Equal(t, "early-1 early-2", consume(t, pool))
	commit(t, late)
	assert.Equal(t, "late-1 late-2", consume(t, pool))
	assert.Equal(t, "", consume(t, pool), "read again")
}

func TestAnEventIsAddedIfAndOnlyIfItsTransactionCommits(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	gone := begin(t, pool)
	add(t, gone, "gone")
	require.NoError(t, gone.Rollback(t.Context()))
	addAll(t, pool, "a")
	addAll(t, pool, "a", "b") // repeated
	assert.Equal(t, "a b", consume(t, pool))
}

func TestAnEventIsReadAsItWasAdded(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	e := notice("x-1")
	e.Tenant, e.Data = "a,\"b\"\n=cmd", json.RawMessage(`{"z": 1,  "a": "\u0000", "big": 12345678901234567890.10}`)
	tx := begin(t, pool)
	require.NoError(t, Add(t.Context(), tx, e))
	commit(t, tx)
	all, err := Read(t.Context(), pool, consumer, 10)
	if err != nil || len(all) != 1 {
		t.Fatalf("read %v, %v", all, err)
	}
	got := all[0].Event
	assert.True(t, got.Time.Equal(e.Time), "the time is %v", got.Time)
	got.Time = e.Time
	assert.Equal(t, fmt.Sprintf("%q", e), fmt.Sprintf("%q", got))
}

func TestAnEventThatCannotBeSentIsNotAdded(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	for fault, damage := range map[string]func(*events.Event){
		"id":    func(e *events.Event) { e.ID = "" },
		"type":  func(e *events.Event) { e.Type = "else" },
		"data:": func(e *events.Event) { e.Data = json.RawMessage(`{"a": "` + strings.Repeat("x", MaxData) + `"}`) },
	} {
		tx := begin(t, pool)
		e := notice("x-1")
		damage(&e)
		if err := Add(t.Context(), tx, notice("good"), e); err == nil || !strings.Contains(err.Error(), fault) {
			t.Errorf("the error is %v, want one that names %s", err, fault)
		}
		require.NoError(t, tx.Rollback(t.Context()))
	}
}

func TestOldEventsAreDeletedAndCountedWhereTheyWereNotRead(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	addAll(t, pool, "a", "b", "c")
	require.Equal(t, "a b c", consume(t, pool))
	addAll(t, pool, "d", "e", "f", "g")
	pgtest.Exec(t, pool, `UPDATE rate_limiter.outbox SET added_at = added_at - interval '8 days'
		WHERE event IN ('a', 'd')`)
	if more, err := Tidy(t.Context(), pool); err != nil || more {
		t.Fatalf("tidied with %v, %v", more, err)
	}
	checkLag(t, pool, 3, 1) // d was not read
	assert.Equal(t, "e f g", consume(t, pool))
	addAll(t, pool, "h", "i", "j")
	_, err := tidy(t.Context(), pool, Kept, 2)
	require.NoError(t, err)
	checkLag(t, pool, 2, 2) // h is one too many
	assert.Equal(t, "i j", consume(t, pool))
}

// checkLag checks how far the consumer is behind.
func checkLag(t *testing.T, pool *pgxpool.Pool, waiting, dropped int64) {
	t.Helper()
	all, err := Lags(t.Context(), pool)
	if err != nil || len(all) != 1 {
		t.Fatalf("the lags are %v (%v), want one", all, err)
	}
	if l := all[0]; l.Consumer != consumer || l.Waiting != waiting || l.Dropped != dropped || l.Oldest <= 0 {
		t.Errorf("the lag is %+v, want %d events waiting and %d dropped", l, waiting, dropped)
	}
}

func TestACursorDoesNotMoveBack(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	addAll(t, pool, "a", "b")
	consume(t, pool)
	move(t, pool, 1)
	assert.Equal(t, "", consume(t, pool), "read again")
}

// Two readers give positions at the same time, while others add.
func TestConcurrentReadersGiveEachEventOnePosition(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	const writers, each = 3, 20
	faults := make(chan error, 2*writers)
	for i := range writers {
		go func() {
			faults <- func() error {
				for j := range each {
					err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
						return Add(t.Context(), tx, notice(fmt.Sprint(i, "-", j)))
					})
					if err != nil {
						return err
					}
				}
				return nil
			}()
		}()
		go func() {
			faults <- func() error {
				for range each {
					if _, err := place(t.Context(), pool); err != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	for range 2 * writers {
		assert.NoError(t, <-faults)
	}
	assert.EqualValues(t, writers*each, len(strings.Fields(consume(t, pool))), "read events")
	var last, most int64
	err := pool.QueryRow(t.Context(), `SELECT last, (SELECT max(position) FROM rate_limiter.outbox)
		FROM rate_limiter.outbox_state`).Scan(&last, &most)
	if err != nil || last != writers*each || most != last {
		t.Errorf("the last position is %d, and the state has %d (%v), want %d", most, last, err, writers*each)
	}
}
