// Cases for paths with faults.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"strconv"
	"strings"
	"time"
)

// Attempts to connect on paths with faults, and the longest time for each: the server may have ended the connection, and
// its last packet may be lost.
const (
	attempts      = 3
	patienceAgain = 15 * time.Second
)

// Handshakes may lose too much, so there are several attempts.
func getAgain(ctx context.Context, config *tls.Config) (err error) {
	for range attempts {
		limited, cancel := context.WithTimeout(ctx, patienceAgain)
		err = getSize(limited, config, 1000)
		cancel()
		if err == nil {
			break
		}
	}
	return err
}

// Returns a case for paths with faults.
func onPath(name string) (func(context.Context, *tls.Config) error, bool) {
	kind, count, _ := strings.Cut(name, "-")
	number, err := strconv.Atoi(count)
	if err != nil {
		return nil, false
	}
	return func(ctx context.Context, config *tls.Config) error {
		if kind == "bytes" {
			return getSize(ctx, config, number)
		}
		results := make(chan error, number)
		for range number {
			go func() {
				// Without a ticket: each connection has a whole handshake.
				fresh := config.Clone()
				fresh.ClientSessionCache = nil
				results <- getAgain(ctx, fresh)
			}()
		}
		var all []error
		for range number {
			all = append(all, <-results)
		}
		return errors.Join(all...)
	}, kind == "bytes" || kind == "connections"
}
