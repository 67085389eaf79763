package faultproxy

import (
	"fmt"
	"net"
	"syscall"
)

// port reserves a port of the loopback with a socket that is bound to it and never listens. Connections fail while no
// server listens there, and no other process gets the port.
type port struct {
	socket int
	number int
}

// holdPort reserves a free port.
func holdPort() (*port, error) {
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket: %w", err)
	}
	p := &port{socket: socket}
	if p.number, err = bind(socket); err != nil {
		_ = syscall.Close(socket) // the error of bind is returned
		return nil, err
	}
	return p, nil
}

// bind binds a socket to a free port of the loopback, which a listener may share.
func bind(socket int) (int, error) {
	if err := syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return 0, fmt.Errorf("share a port: %w", err)
	}
	if err := syscall.Bind(socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, fmt.Errorf("bind to a port: %w", err)
	}
	name, err := syscall.Getsockname(socket)
	if err != nil {
		return 0, fmt.Errorf("read the port: %w", err)
	}
	return name.(*syscall.SockaddrInet4).Port, nil
}

// address returns the port's address on the loopback.
func (p *port) address() string { return net.JoinHostPort("127.0.0.1", fmt.Sprint(p.number)) }

// close releases the port.
func (p *port) close() error {
	if err := syscall.Close(p.socket); err != nil {
		return fmt.Errorf("release port %d: %w", p.number, err)
	}
	return nil
}
