package pgtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

func TestFoldersOfKilledTestsAreRemovedFromMemory(t *testing.T) {
	parent, _ := memoryFolder()
	if parent == "" {
		t.Log("there is too little memory for servers")
		return
	}
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(parent, "pgtest-"+strconv.Itoa(ended.Process.Pid)+"-1")
	own := filepath.Join(parent, "pgtest-"+strconv.Itoa(os.Getpid())+"-0")
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
	memoryFolder()
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("the folder of an ended process is still there: %v", err)
	}
	if _, err := os.Stat(own); err != nil {
		t.Errorf("the folder of a running process is gone: %v", err)
	}
}
