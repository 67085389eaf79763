package pgtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

func TestWhatAKilledTestHasLeftInMemoryGoes(t *testing.T) {
	place, _ := swift()
	if place == "" {
		t.Log("there is too little memory for servers")
		return
	}
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(place, "pgtest-"+strconv.Itoa(ended.Process.Pid)+"-1")
	own := filepath.Join(place, "pgtest-"+strconv.Itoa(os.Getpid())+"-0")
	for _, dir := range []string{left, own} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		})
	}
	swift()
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("the folder of a process that has ended is there: %v", err)
	}
	if _, err := os.Stat(own); err != nil {
		t.Errorf("the folder of a process that lives is gone: %v", err)
	}
}
