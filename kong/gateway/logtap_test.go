package gateway

import (
	"bytes"
	"io"
	"net"
)

// tapped is a frame, or an end of file, on a connection.
type tapped struct {
	dir     string
	payload []byte
	eof     bool
}

// tapListener records what goes over its connections.
type tapListener struct {
	net.Listener
	play *logPlay
}

func (l tapListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &tapConn{Conn: conn, play: l.play}, nil
}

// tapConn records the frames of a connection, as the plugin sees them.
type tapConn struct {
	net.Conn
	play   *logPlay
	unread []byte // of a frame that has not arrived yet
	frames []tapped
}

func (c *tapConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.unread = c.add("kong->plugin", append(c.unread, p[:n]...))
	if err == io.EOF {
		c.addEnd("kong->plugin")
	}
	return n, err
}

func (c *tapConn) Write(p []byte) (int, error) {
	c.add("plugin->kong", p)
	return c.Conn.Write(p)
}

func (c *tapConn) Close() error {
	c.addEnd("plugin->kong")
	return c.Conn.Close()
}

// add records the whole frames of a stream, and returns the others.
func (c *tapConn) add(dir string, stream []byte) []byte {
	for r := bytes.NewReader(stream); ; {
		frame, err := readFakeFrame(r)
		if err != nil {
			return stream
		}
		stream = stream[4+len(frame):]
		c.record(tapped{dir: dir, payload: frame})
	}
}

// addEnd records the end of a connection that had frames, once.
func (c *tapConn) addEnd(dir string) {
	c.play.mu.Lock()
	ended := len(c.frames) == 0 || c.frames[len(c.frames)-1].eof
	c.play.mu.Unlock()
	if !ended {
		c.record(tapped{dir: dir, eof: true})
	}
}

func (c *tapConn) record(frame tapped) {
	c.play.mu.Lock()
	defer c.play.mu.Unlock()
	if len(c.frames) == 0 {
		c.play.conns = append(c.play.conns, c)
	}
	c.frames = append(c.frames, frame)
	c.play.changed.Broadcast()
}
