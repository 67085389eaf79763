package pgtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFoldersOfKilledTestsAreRemovedFromMemory(t *testing.T) {
	parent, _ := memoryFolder()
	if parent == "" {
		t.Log("there is too little memory for servers")
		return
	}
	ended := exec.Command("true")
	require.NoError(t, ended.Run())
	left := filepath.Join(parent, "pgtest-"+strconv.Itoa(ended.Process.Pid)+"-1")
	own := filepath.Join(parent, "pgtest-"+strconv.Itoa(os.Getpid())+"-0")
	for _, dir := range []string{left, own} {
		require.NoError(t, os.Mkdir(dir, 0o700))
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

func TestPackagesOfOneRunShareTheDataThatServersStartWith(t *testing.T) {
	if parent, _ := memoryFolder(); parent == "" {
		t.Log("there is too little memory for servers")
		return
	}
	started, isGo := startOfGo(os.Getppid())
	if !isGo {
		t.Log("the parent of this process is not go")
		return
	}
	fills := 0
	fill := func() (*Server, error) {
		fills++
		return create()
	}
	for range 2 { // one for each package
		s, err := (&cluster{name: "test", fill: fill}).start()
		require.NoError(t, err)
		if err := s.remove(); err != nil {
			t.Error(err)
		}
	}
	dir := filepath.Join(memory, "pgtest-"+strconv.Itoa(os.Getppid())+"-"+started, "test")
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
	if fills != 1 {
		t.Errorf("the data was created %d times, want once", fills)
	}
}
