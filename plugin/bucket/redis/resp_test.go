package redis

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
)

// encoded returns a reply of nils, integers, texts and arrays.
func encoded(elements ...any) []byte {
	reply := append(strconv.AppendInt([]byte{'*'}, int64(len(elements)), 10), "\r\n"...)
	for _, element := range elements {
		switch element := element.(type) {
		case nil:
			reply = append(reply, "$-1\r\n"...)
		case int64:
			reply = append(strconv.AppendInt(append(reply, ':'), element, 10), "\r\n"...)
		case string:
			reply = appendBulk(reply, element)
		case []any:
			reply = append(reply, encoded(element...)...)
		default:
			panic("an element of another type")
		}
	}
	return reply
}

// scriptReply returns the reply of the script to one request.
func scriptReply(elements ...any) []byte { return encoded(elements) }

// decoded returns the elements of a reply that is an array.
func decoded(e *elements) []any {
	list := make([]any, e.array())
	for i := range list {
		switch e.next() {
		case ':':
			list[i] = e.integer()
		case '*':
			list[i] = decoded(e)
		default:
			if text := e.text(); text != nil {
				list[i] = string(text)
			}
		}
	}
	return list
}

// evaluate runs a script by a transport, and returns the elements of its reply.
func evaluate(ctx context.Context, t transport, script *script, keys []string, args ...string) ([]any, error) {
	c := newCall(keys, args...)
	if err := t.Run(ctx, script, c); err != nil {
		return nil, err
	}
	e := elements{left: c.reply}
	list := decoded(&e)
	return list, e.end()
}

func TestAReplyEndsWithItsLastElement(t *testing.T) {
	for _, reply := range []string{
		"+OK\r\n", "-ERR no\r\n", ":-5\r\n", "$-1\r\n", "$0\r\n\r\n", "$4\r\n\r\n\r\n\r\n", "*-1\r\n", "*0\r\n",
		"*3\r\n$1\r\nx\r\n*2\r\n:1\r\n*0\r\n$-1\r\n",
	} {
		for i := range len(reply) {
			if n, err := replyLength([]byte(reply[:i])); n != 0 || err != nil {
				t.Errorf("%q has a reply of %d bytes (%v), want that more is to come", reply[:i], n, err)
			}
		}
		if n, err := replyLength([]byte(reply + ":7\r\n")); n != len(reply) || err != nil {
			t.Errorf("%q has a reply of %d bytes (%v), want %d", reply+":7\r\n", n, err, len(reply))
		}
	}
}

func TestWhatIsNoReplyIsAnError(t *testing.T) {
	for _, text := range []string{
		"\r\n", "?\r\n", "OK\n", "$x\r\n", "$\r\n", "$-2\r\n", "$1\r\nxyz", ":1x\r\n", ":\r\n", "*9999999999999999999\r\n",
		"$999999999999\r\n", "%1\r\n+a\r\n+b\r\n", ">2\r\n+invalidate\r\n*0\r\n",
	} {
		if n, err := replyLength([]byte(text)); err == nil {
			t.Errorf("%q has a reply of %d bytes, want an error", text, n)
		}
	}
}

func FuzzReply(f *testing.F) {
	now := int64(1_700_000_000_000_000)
	f.Add(scriptReply(nil, nil, now))
	value := string(slices.Repeat([]byte{2}, headSize+entrySize))
	f.Add(scriptReply(value, int64(1), now, []any{int64(1)}, nil, []any{int64(2)}))
	f.Add(scriptReply(nil, nil, now, nil, []any{int64(2), int64(1), now, now, int64(0), int64(1)}))
	f.Add(scriptReply([]any{int64(1), int64(-1)}))
	f.Add(encoded([]any{int64(1)}, []any{int64(2)}))
	f.Fuzz(func(t *testing.T, reply []byte) {
		n, err := replyLength(reply)
		if err != nil || n == 0 {
			n = 0
		}
		if n > len(reply) || n < 0 {
			t.Fatalf("%d of %d bytes are a reply", n, len(reply))
		}
		original := bytes.Clone(reply)
		p := compiled(t)
		if again, err := p.learnLevels(reply); err != nil && (again || !errors.Is(err, errReply)) {
			t.Fatalf("levels: %v, %v", again, err)
		}
		var settling scriptCall
		require.NoError(t, settling.settle(p.bounds, make([]settlement, len(p.bounds))))
		if _, err := settling.readSettled(reply); err != nil && !errors.Is(err, errReply) {
			t.Fatalf("settlement: %v", err)
		}
		if _, _, err := p.readReply(reply); err != nil {
			if !errors.Is(err, errReply) {
				t.Fatalf("take: %v", err)
			}
		} else if err := p.fillStatuses(make([]decision.Status, 2), true); err != nil && !errors.Is(err, errScriptDiffers) {
			t.Fatalf("statuses: %v", err)
		} else if n != len(reply) {
			t.Fatalf("%d of %d bytes are a reply, but all are read", n, len(reply))
		}
		if !bytes.Equal(reply, original) {
			t.Fatal("reading has changed the reply")
		}
	})
}
