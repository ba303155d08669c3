// SPDX-License-Identifier: Apache-2.0

// Package guard limits a program's metrics to users with a right that the API server checks.
//
// In: requests with a bearer token. Out: those of users who may `get` the path as a non-resource URL go on; 401, 403, 429 or 503
// else. The token is the API server's to judge (TokenReview), and so is the right (SubjectAccessReview), as kube-rbac-proxy asks
// them. Every host that reaches the port may send requests: so an address has one question under way, all addresses have a few, answers are kept
// for a short time, and connections are counted. It must never use the client of the program's own work.
package guard

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"ktsn.io/ktsn/k8s/internal/kube"
	"ktsn.io/ktsn/k8s/internal/kube/kinds"
)

const (
	// An answer holds so long: a token that is revoked may read so much longer.
	keptYes = 30 * time.Second
	keptNo  = 10 * time.Second
	// keptMax answers are kept.
	keptMax = 1024
	// askMax is how long the API server has, for both questions.
	askMax = 5 * time.Second
	// askingMax questions are under way at once, one of each address.
	askingMax = 8
	tokenMax  = 16 << 10 // octets
)

var (
	errToken = errors.New("the token is none that the API server knows")
	errRight = errors.New("the user may not get this path as a non-resource URL")
	errBusy  = errors.New("too many questions are under way")
)

// Guard judges requests.
type Guard struct {
	kube kube.Reviews
	log  *slog.Logger
	now  func() time.Time

	mutex  sync.Mutex
	kept   map[question]answer
	asking map[string]bool // addresses
}

type question struct {
	token [sha256.Size]byte
	path  string
}

type answer struct {
	err   error // nil: yes
	until time.Time
}

// New makes a guard. `kube` is a client for nothing else: any host that reaches the port can use up its limit.
func New(reviews kube.Reviews, log *slog.Logger) *Guard {
	return &Guard{kube: reviews, log: log, now: time.Now, kept: map[question]answer{}, asking: map[string]bool{}}
}

// Wrap guards a handler.
func (g *Guard) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			http.Error(w, "GET or HEAD is expected", http.StatusMethodNotAllowed)
			return
		}
		token, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if token = strings.TrimSpace(token); !found || token == "" || len(token) > tokenMax {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "a bearer token of the cluster is expected", http.StatusUnauthorized)
			return
		}
		err := g.judge(r.Context(), addressOf(r), token, r.URL.Path)
		status := http.StatusServiceUnavailable
		switch {
		case err == nil:
			next.ServeHTTP(w, r)
			return
		case errors.Is(err, errToken):
			w.Header().Set("WWW-Authenticate", "Bearer")
			status = http.StatusUnauthorized
		case errors.Is(err, errRight):
			status = http.StatusForbidden
		case errors.Is(err, errBusy):
			status = http.StatusTooManyRequests
		default:
			g.log.Warn("a request for metrics could not be judged", "error", err)
			err = errors.New("the API server did not answer; the log says more")
		}
		http.Error(w, err.Error(), status)
	})
}

func addressOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// judge returns nil where the token's user may get the path.
func (g *Guard) judge(ctx context.Context, address, token, path string) error {
	asked := question{sha256.Sum256([]byte(token)), path}
	g.mutex.Lock()
	if kept, known := g.kept[asked]; known && g.now().Before(kept.until) {
		g.mutex.Unlock()
		return kept.err
	}
	if g.asking[address] || len(g.asking) >= askingMax {
		g.mutex.Unlock()
		return errBusy
	}
	g.asking[address] = true
	g.mutex.Unlock()
	defer func() {
		g.mutex.Lock()
		delete(g.asking, address)
		g.mutex.Unlock()
	}()
	ctx, cancel := context.WithTimeout(ctx, askMax)
	defer cancel()
	err := g.ask(ctx, token, path)
	switch {
	case err == nil:
		g.keep(asked, answer{nil, g.now().Add(keptYes)})
	case errors.Is(err, errToken), errors.Is(err, errRight):
		g.keep(asked, answer{err, g.now().Add(keptNo)})
	}
	return err
}

func (g *Guard) ask(ctx context.Context, token, path string) error {
	review, err := g.kube.ReviewToken(ctx, &kinds.TokenReview{Spec: kinds.TokenReviewSpec{Token: token}})
	if err != nil {
		return fmt.Errorf("TokenReview: %w", err)
	}
	if !review.Status.Authenticated {
		return errToken
	}
	user := review.Status.User
	access, err := g.kube.ReviewAccess(ctx, &kinds.SubjectAccessReview{
		Spec: kinds.SubjectAccessReviewSpec{
			User: user.Username, UID: user.UID, Groups: user.Groups, Extra: user.Extra,
			NonResourceAttributes: &kinds.NonResourceAttributes{Path: path, Verb: "get"},
		},
	})
	if err != nil {
		return fmt.Errorf("SubjectAccessReview: %w", err)
	}
	if !access.Status.Allowed || access.Status.Denied {
		return errRight
	}
	return nil
}

// keep remembers an answer. Where there are too many, those that hold no more go, then refusals, then all.
func (g *Guard) keep(asked question, given answer) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	now := g.now()
	for _, goes := range []func(answer) bool{
		func(kept answer) bool { return !now.Before(kept.until) },
		func(kept answer) bool { return kept.err != nil },
		func(answer) bool { return true },
	} {
		if len(g.kept) < keptMax {
			break
		}
		for one, kept := range g.kept {
			if goes(kept) {
				delete(g.kept, one)
			}
		}
	}
	g.kept[asked] = given
}
