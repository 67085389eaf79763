package gateway

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConnReturnsErrors(t *testing.T) {
	if _, err := Dial(t.TempDir() + "/none"); err == nil {
		t.Error("connected to a missing socket")
	}
	fake := newFakePlugin(t, (*fakeEvent).lose)
	c, err := Dial(fake.socket())
	require.NoError(t, err)
	defer c.Close()
	if _, err := c.HandleEvent(1, "access", Request{Target: "/%"}); err == nil {
		t.Error("a bad target was accepted")
	}
	if _, err := c.HandleEvent(1, "access", Request{}); err == nil {
		t.Error("an unknown instance was served")
	}
	if _, err := c.StartInstance("rec", nil); err == nil {
		t.Error("a lost connection still works")
	}
}
