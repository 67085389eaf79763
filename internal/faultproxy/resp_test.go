package faultproxy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestAValueIsReadToItsEndAndNoFurther(t *testing.T) {
	for _, value := range []string{
		"+OK\r\n", "-ERR no\r\n", ":12\r\n", "$-1\r\n", "$0\r\n\r\n", "$7\r\na\r\nb\r\nc\r\n", "*-1\r\n", "*0\r\n",
		"_\r\n", "#t\r\n", ",1.5\r\n", "(123\r\n", "*2\r\n*1\r\n:1\r\n$1\r\nx\r\n", "%1\r\n+a\r\n:1\r\n", "~1\r\n:1\r\n",
		"=5\r\ntxt:a\r\n", "!3\r\nERR\r\n", "|1\r\n+ttl\r\n:1\r\n+value\r\n", "PING\r\n",
		"+" + strings.Repeat("x", 10000) + "\r\n",
	} {
		r := bufio.NewReader(strings.NewReader(value + "+next\r\n"))
		if got, err := readValue(r); err != nil || string(got) != value {
			t.Errorf("%.40q: read %.40q, %v", value, got, err)
		}
		if next, err := readValue(r); err != nil || string(next) != "+next\r\n" {
			t.Errorf("%.40q: then %q, %v", value, next, err)
		}
		_, err := readValue(bufio.NewReader(strings.NewReader(value[:len(value)-1])))
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%.40q without its end: %v", value, err)
		}
	}
	if _, err := readValue(bufio.NewReader(strings.NewReader(""))); err != io.EOF {
		t.Errorf("nothing: %v", err)
	}
}

func TestBytesThatAreNotRESPAreAnError(t *testing.T) {
	for _, text := range []string{"$x\r\n", "*-2\r\n", "$99999999999\r\n", strings.Repeat("*1\r\n", 100) + ":1\r\n"} {
		if value, err := readValue(bufio.NewReader(strings.NewReader(text))); err == nil {
			t.Errorf("%.40q: %q, want an error", text, value)
		}
	}
}

func TestTheNameOfACommandIsFound(t *testing.T) {
	for text, want := range map[string]string{
		string(command("EvalSha", "x")): "evalsha", string(command("PING")): "ping",
		"PING\r\n": "ping", "get a\r\n": "get", "*0\r\n": "", "\r\n": "",
	} {
		if got := commandName([]byte(text)); got != want {
			t.Errorf("the name of %q is %q, want %q", text, got, want)
		}
	}
}

func FuzzReadValue(f *testing.F) {
	for _, seed := range []string{"*2\r\n$1\r\na\r\n:1\r\n", "%1\r\n+a\r\n_\r\n", "|0\r\n+x\r\n", "$-1\r\n", "PING\r\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 1<<16 || bytes.Count(text, []byte("00000")) > 0 {
			return // readValue allocates a length before it reads
		}
		value, err := readValue(bufio.NewReader(bytes.NewReader(text)))
		if !bytes.HasPrefix(text, value) {
			t.Errorf("read %q, which is no prefix of %q", value, text)
		}
		if err == nil {
			_ = commandName(value)
		}
	})
}
