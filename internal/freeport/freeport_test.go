package freeport_test

import (
	"net"
	"sync"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
)

func TestEveryAddressIsFreeAndReturnedOnce(t *testing.T) {
	const each = 200
	var taken sync.Map
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range each {
				address := freeport.Address(t)
				if _, twice := taken.LoadOrStore(address, true); twice {
					t.Errorf("%s was returned twice", address)
				}
				if listener, err := net.Listen("tcp", address); err != nil {
					t.Error(err)
				} else {
					t.Cleanup(func() { listener.Close() })
				}
				if claim, err := net.ListenPacket("udp", address); err == nil {
					t.Errorf("%s is not claimed: another process can get it", address)
					_ = claim.Close()
				}
			}
		})
	}
	group.Wait()
}
