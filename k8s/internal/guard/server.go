// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// Connections at once, and of one address.
	connectionsMax = 64
	ofAddressMax   = 8
	headerMax      = 32 << 10 // octets
)

// Server makes a server that bounds the time and the memory of a request.
func Server(handler http.Handler) *http.Server {
	return &http.Server{
		Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 15 * time.Second,
		IdleTimeout: 30 * time.Second, MaxHeaderBytes: headerMax,
		// A connection of HTTP/2 may carry any number of requests.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
}

// Listen makes a listener that bounds the connections of each address.
func Listen(address string) (net.Listener, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	return &bounded{Listener: listener, open: map[string]int{}}, nil
}

// ListenTLS listens as Listen does, by TLS. The certificate comes from two files, which are read again when they change; without files it is a new
// self-signed one.
func ListenTLS(address, certFile, keyFile string) (net.Listener, error) {
	pair := &keyPair{certFile: certFile, keyFile: keyFile, now: time.Now}
	if _, err := pair.get(nil); err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	listener, err := Listen(address)
	if err != nil {
		return nil, err
	}
	return tls.NewListener(listener, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.get, NextProtos: []string{"http/1.1"}}), nil
}

// bounded counts connections.
type bounded struct {
	net.Listener
	mutex sync.Mutex
	open  map[string]int
	all   int
}

// Accept closes a connection above the limits at once, so an address with many connections takes no place of others.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		connection, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		address, _, err := net.SplitHostPort(connection.RemoteAddr().String())
		if err != nil {
			address = connection.RemoteAddr().String()
		}
		if b.take(address) {
			return &counted{Conn: connection, give: sync.OnceFunc(func() { b.give(address) })}, nil
		}
		connection.Close()
	}
}

func (b *bounded) take(address string) bool {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.all >= connectionsMax || b.open[address] >= ofAddressMax {
		return false
	}
	b.all++
	b.open[address]++
	return true
}

func (b *bounded) give(address string) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.all--
	if b.open[address]--; b.open[address] == 0 {
		delete(b.open, address)
	}
}

type counted struct {
	net.Conn
	give func()
}

func (c *counted) Close() error {
	c.give()
	return c.Conn.Close()
}
