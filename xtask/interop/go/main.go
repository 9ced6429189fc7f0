// Client of HTTP/3 for `cargo xtask test interop`, on quic-go. It runs the cases that its arguments name, and writes a line
// for each: its name and `ok`, or the reason of its failure. For paths with faults, `bytes-N` is one response of N bytes, and
// `connections-N` is N connections at once.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/quic-go/quic-go/qlog"
	"github.com/quic-go/quic-go/qlogwriter"
)

// Longest time for a case.
const patience = 60 * time.Second

// Time after which a waiting client sends a PING. A server that cannot reach a new address of NAT needs it. It is longer than
// the silence of any path here, from which the server has to recover by itself.
const keepAlive = 5 * time.Second

var (
	address = flag.String("address", "", "address of the server")
	name    = flag.String("name", "", "name of the server")
	roots   = flag.String("roots", "", "file with the certificate of the authority")
)

// A connection with its socket.
type client struct {
	quic   *quic.Conn
	h3     *http3.ClientConn
	server *net.UDPAddr
	events *events
}

// Events of a connection, as quic-go writes them to qlog.
type events struct {
	// Whether this side was the first with new keys.
	isFirst atomic.Bool
	// Packets of the server with new keys after that.
	followed atomic.Int64
}

func (e *events) AddProducer() qlogwriter.Recorder { return e }

func (e *events) Close() error { return nil }

func (e *events) RecordEvent(event qlogwriter.Event) {
	switch event := event.(type) {
	case qlog.KeyUpdated:
		if event.Trigger == qlog.KeyUpdateLocal && event.KeyPhase == 1 {
			e.isFirst.Store(true)
		}
	case qlog.PacketReceived:
		if event.Header.KeyPhaseBit == qlog.KeyPhaseOne && e.isFirst.Load() {
			e.followed.Add(1)
		}
	}
}

func main() {
	flag.Parse()
	pem, err := os.ReadFile(*roots)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	config := &tls.Config{
		ServerName: *name, RootCAs: pool, NextProtos: []string{http3.NextProtoH3},
		ClientSessionCache: tls.NewLRUClientSessionCache(8),
	}
	cases := map[string]func(context.Context, *tls.Config) error{
		"get": get, "post": post, "streams": streams, "trailers": trailers, "early": early, "resumption": resumption,
		"migration": migration, "rebinding": post, "keys": keys, "chacha20": chacha20, "multiconnect": multiconnect,
		"retry": get, "ipv6": get,
	}
	for _, name := range flag.Args() {
		run, known := cases[name]
		if !known {
			run, known = onPath(name)
		}
		err := errors.New("no such case")
		if known {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			err = run(ctx, config)
			cancel()
		}
		if err != nil {
			fmt.Printf("%s %v\n", name, err)
		} else {
			fmt.Printf("%s ok\n", name)
		}
	}
}

func listen(server *net.UDPAddr) (*quic.Transport, error) {
	local := net.IPv4(127, 0, 0, 1)
	if server.IP.To4() == nil {
		local = net.IPv6loopback
	}
	socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: local})
	if err != nil {
		return nil, err
	}
	return &quic.Transport{Conn: socket}, nil
}

func connect(ctx context.Context, config *tls.Config) (*client, error) {
	server, err := net.ResolveUDPAddr("udp", *address)
	if err != nil {
		return nil, err
	}
	transport, err := listen(server)
	if err != nil {
		return nil, err
	}
	seen := &events{}
	tracer := func(context.Context, bool, quic.ConnectionID) qlogwriter.Trace { return seen }
	options := &quic.Config{HandshakeIdleTimeout: patience, KeepAlivePeriod: keepAlive, Tracer: tracer}
	conn, err := transport.Dial(ctx, server, config, options)
	if err != nil {
		return nil, err
	}
	return &client{conn, (&http3.Transport{}).NewClientConn(conn), server, seen}, nil
}

func (c *client) close() { c.quic.CloseWithError(0x100, "") }

// Sends a request, and returns the response with its whole body.
func (c *client) ask(ctx context.Context, method, path string, body io.Reader, trailer http.Header) (*http.Response, []byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, "https://"+*name+path, body)
	if err != nil {
		return nil, nil, err
	}
	request.Trailer = trailer
	response, err := c.h3.RoundTrip(request)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, nil, err
	}
	if response.StatusCode != http.StatusOK || response.Proto != "HTTP/3.0" {
		return nil, nil, fmt.Errorf("answered %s by %s", response.Status, response.Proto)
	}
	return response, got, nil
}

func (c *client) echo(ctx context.Context, sent []byte) error {
	_, got, err := c.ask(ctx, http.MethodPost, "/echo", bytes.NewReader(sent), nil)
	if err == nil && !bytes.Equal(got, sent) {
		err = fmt.Errorf("%d other bytes came back", len(got))
	}
	return err
}

func pattern(length int) []byte {
	bytes := make([]byte, length)
	for at := range bytes {
		bytes[at] = byte(at % 251)
	}
	return bytes
}

func get(ctx context.Context, config *tls.Config) error { return getSize(ctx, config, 1000000) }

func getSize(ctx context.Context, config *tls.Config, length int) error {
	c, err := connect(ctx, config)
	if err != nil {
		return err
	}
	defer c.close()
	_, got, err := c.ask(ctx, http.MethodGet, fmt.Sprintf("/size/%d", length), nil, nil)
	if err == nil && !bytes.Equal(got, pattern(length)) {
		err = fmt.Errorf("%d other bytes came", len(got))
	}
	return err
}

func post(ctx context.Context, config *tls.Config) error {
	c, err := connect(ctx, config)
	if err != nil {
		return err
	}
	defer c.close()
	return c.echo(ctx, pattern(1<<20))
}

func streams(ctx context.Context, config *tls.Config) error {
	c, err := connect(ctx, config)
	if err != nil {
		return err
	}
	defer c.close()
	var all sync.WaitGroup
	failed := make(chan error, 300)
	for number := range 300 {
		all.Go(func() {
			if err := c.echo(ctx, pattern(number*10)); err != nil {
				failed <- err
			}
		})
	}
	all.Wait()
	close(failed)
	return <-failed
}

func trailers(ctx context.Context, config *tls.Config) error {
	c, err := connect(ctx, config)
	if err != nil {
		return err
	}
	defer c.close()
	// Without a length, so that trailers are sent.
	body := io.MultiReader(bytes.NewReader(pattern(5000)))
	response, got, err := c.ask(ctx, http.MethodPost, "/h2/echo", body, http.Header{"X-Sum": {"42"}})
	if err != nil {
		return err
	}
	if !bytes.Equal(got, pattern(5000)) || response.Trailer.Get("X-Sum") != "42" {
		return fmt.Errorf("%d bytes and the trailers %v came back", len(got), response.Trailer)
	}
	return nil
}

// A response that comes before the body is not an error, and the connection goes on.
func early(ctx context.Context, config *tls.Config) error {
	c, err := connect(ctx, config)
	if err != nil {
		return err
	}
	defer c.close()
	if _, _, err := c.ask(ctx, http.MethodPost, "/early", bytes.NewReader(pattern(4<<20)), nil); err != nil {
		return err
	}
	return c.echo(ctx, pattern(1000))
}

func resumption(ctx context.Context, config *tls.Config) error {
	for _, expected := range []bool{false, true, true} {
		if !expected {
			config = config.Clone()
			config.ClientSessionCache = tls.NewLRUClientSessionCache(8)
		}
		c, err := connect(ctx, config)
		if err != nil {
			return err
		}
		if err := c.echo(ctx, pattern(1000)); err != nil {
			return err
		}
		resumed := c.quic.ConnectionState().TLS.DidResume
		c.close()
		if resumed != expected {
			return fmt.Errorf("resumed: %v instead of %v", resumed, expected)
		}
	}
	return nil
}

// Some 900 packets: quic-go updates its keys after 100 packets, unless the server was first, at a packet of its choice.
func keys(ctx context.Context, config *tls.Config) error {
	for range 10 {
		c, err := connect(ctx, config)
		if err != nil {
			return err
		}
		err = c.echo(ctx, pattern(1<<20))
		c.close()
		if err != nil {
			return err
		}
		if c.events.isFirst.Load() {
			if c.events.followed.Load() == 0 {
				return errors.New("the server has not followed an update of keys")
			}
			return nil
		}
	}
	return errors.New("the client was never first with new keys")
}

// The lane turns the processor's AES off for this case (GODEBUG), so Go prefers the other cipher.
func chacha20(ctx context.Context, config *tls.Config) error {
	c, err := connect(ctx, config)
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.echo(ctx, pattern(100000)); err != nil {
		return err
	}
	if chosen := c.quic.ConnectionState().TLS.CipherSuite; chosen != tls.TLS_CHACHA20_POLY1305_SHA256 {
		return fmt.Errorf("the cipher is %s", tls.CipherSuiteName(chosen))
	}
	return nil
}

func multiconnect(ctx context.Context, config *tls.Config) error {
	for range 20 {
		c, err := connect(ctx, config)
		if err != nil {
			return err
		}
		err = c.echo(ctx, pattern(1000))
		c.close()
		if err != nil {
			return err
		}
	}
	return nil
}

// The client tries another port amid a request, and continues there. It gives up the path before, whose connection ID
// the server then replaces.
func migration(ctx context.Context, config *tls.Config) error {
	c, err := connect(ctx, config)
	if err != nil {
		return err
	}
	defer c.close()
	var previous *quic.Path
	for range 5 {
		amid := make(chan error, 1)
		go func() { amid <- c.echo(ctx, pattern(1000000)) }()
		transport, err := listen(c.server)
		if err != nil {
			return err
		}
		path, err := c.quic.AddPath(transport)
		if err != nil {
			return err
		}
		if err := path.Probe(ctx); err != nil {
			return fmt.Errorf("the path is not validated: %w", err)
		}
		if err := path.Switch(); err != nil {
			return err
		}
		if previous != nil {
			if err := previous.Close(); err != nil {
				return err
			}
		}
		previous = path
		if err := <-amid; err != nil {
			return err
		}
	}
	return c.echo(ctx, pattern(100000))
}
