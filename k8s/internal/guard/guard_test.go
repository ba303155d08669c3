// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"ktsn.io/ktsn/k8s/internal/eventually"
	"ktsn.io/ktsn/k8s/internal/kube/kubetest"
)

// reviewer is an API server that knows two tokens: "prometheus" may get /metrics, "other" may not.
type reviewer struct {
	*fake.Clientset
	asked atomic.Int32
	fails atomic.Bool
	hangs chan struct{}
}

func newReviewer() *reviewer {
	r := &reviewer{Clientset: fake.NewClientset()}
	r.PrependReactor("create", "tokenreviews", func(action ktesting.Action) (bool, runtime.Object, error) {
		r.asked.Add(1)
		if r.hangs != nil {
			<-r.hangs
		}
		if r.fails.Load() {
			return true, nil, errors.New("away")
		}
		review := action.(ktesting.CreateAction).GetObject().(*authentication.TokenReview)
		token := review.Spec.Token
		review.Status.Authenticated = token == "prometheus" || token == "other"
		review.Status.User = authentication.UserInfo{Username: token, Groups: []string{"g"}, Extra: map[string]authentication.ExtraValue{"k": {"v"}}}
		return true, review, nil
	})
	r.PrependReactor("create", "subjectaccessreviews", func(action ktesting.Action) (bool, runtime.Object, error) {
		review := action.(ktesting.CreateAction).GetObject().(*authorization.SubjectAccessReview)
		of := review.Spec
		review.Status.Allowed = of.User == "prometheus" && of.Groups[0] == "g" && of.Extra["k"][0] == "v" &&
			of.ResourceAttributes == nil && of.NonResourceAttributes.Path == "/metrics" && of.NonResourceAttributes.Verb == "get"
		return true, review, nil
	})
	return r
}

func newGuard(r *reviewer) *Guard {
	return New(kubetest.Of(r.Clientset), slog.New(slog.DiscardHandler))
}

func status(handler http.Handler, method, path, authorization, from string) int {
	request := httptest.NewRequest(method, path, nil)
	request.RemoteAddr = from + ":1234"
	if authorization != "" {
		request.Header.Set("Authorization", authorization)
	}
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, request)
	return recorder.Code
}

var served = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ktsn_up 1") })

func TestOnlyWhoMayReadReads(t *testing.T) {
	r := newReviewer()
	handler := newGuard(r).Wrap(served)
	for _, c := range []struct {
		method, path, authorization string
		want                        int
	}{
		{"GET", "/metrics", "", 401}, {"GET", "/metrics", "Bearer ", 401}, {"GET", "/metrics", "Basic prometheus", 401},
		{"GET", "/metrics", "Bearer nobody", 401}, {"GET", "/metrics", "Bearer " + string(make([]byte, tokenMax+1)), 401},
		{"GET", "/metrics", "Bearer other", 403}, {"GET", "/metrics", "Bearer prometheus", 200}, {"HEAD", "/metrics", "Bearer prometheus", 200},
		{"GET", "/other", "Bearer prometheus", 403}, {"POST", "/metrics", "Bearer prometheus", 405},
	} {
		if got := status(handler, c.method, c.path, c.authorization, "192.0.2.1"); got != c.want {
			t.Errorf("%s %s %.20q: %d, expected %d", c.method, c.path, c.authorization, got, c.want)
		}
	}
	// Without an API server no new user is let in.
	r.fails.Store(true)
	if got := status(handler, "GET", "/metrics", "Bearer new", "192.0.2.1"); got != 503 {
		t.Errorf("API server away: %d", got)
	}
}

func TestAnswersHoldForAShortTime(t *testing.T) {
	r := newReviewer()
	g := newGuard(r)
	now := time.Now()
	g.now = func() time.Time { return now }
	handler := g.Wrap(served)
	scrape := func(token string) int { return status(handler, "GET", "/metrics", "Bearer "+token, "192.0.2.1") }
	for range 10 {
		if scrape("prometheus") != 200 || scrape("nobody") != 401 {
			t.Fatal("not as before")
		}
	}
	if asked := r.asked.Load(); asked != 2 {
		t.Errorf("the API server was asked %d times", asked)
	}
	now = now.Add(keptYes)
	r.fails.Store(true)
	if got := scrape("prometheus"); got != 503 {
		t.Errorf("an old answer holds: %d", got)
	}
	r.fails.Store(false)
	for index := range 3 * keptMax {
		scrape(fmt.Sprint("nobody", index))
	}
	if len(g.kept) > keptMax {
		t.Errorf("%d answers are kept", len(g.kept))
	}
}

// Whoever sends many tokens keeps no one else from being heard.
func TestOneAddressAsksOneQuestionAtATime(t *testing.T) {
	r := newReviewer()
	r.hangs = make(chan struct{})
	handler := newGuard(r).Wrap(served)
	answers := make(chan int)
	go func() { answers <- status(handler, "GET", "/metrics", "Bearer nobody", "192.0.2.66") }()
	eventually.Holds(t, "the first is asked about", func() bool { return r.asked.Load() > 0 })
	for range 20 {
		if got := status(handler, "GET", "/metrics", "Bearer more", "192.0.2.66"); got != 429 {
			t.Fatalf("a second question of one address: %d", got)
		}
	}
	go func() { answers <- status(handler, "GET", "/metrics", "Bearer prometheus", "192.0.2.1") }()
	close(r.hangs)
	if first, second := <-answers, <-answers; first+second != 401+200 {
		t.Errorf("%d, %d", first, second)
	}
}

func TestConnectionsAreCountedByAddress(t *testing.T) {
	listener, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := Server(served)
	go server.Serve(listener) // ends with Close
	defer server.Close()
	// Open ones that say nothing.
	var open []net.Conn
	for range ofAddressMax {
		connection, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, connection)
	}
	more, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := more.Read(make([]byte, 1)); err == nil {
		t.Error("one more is served")
	}
	bounded := listener.(*bounded)
	if !bounded.take("192.0.2.1") {
		t.Error("another address has no room")
	}
	bounded.give("192.0.2.1")
	open[0].Close()
	eventually.Holds(t, "the address has room again", func() bool {
		answer, err := http.Get("http://" + listener.Addr().String())
		if err == nil {
			answer.Body.Close()
		}
		return err == nil
	})
}

func TestTheListenerHasACertificate(t *testing.T) {
	listener, err := ListenTLS("127.0.0.1:0", "", "")
	if err != nil {
		t.Fatal(err)
	}
	server := Server(newGuard(newReviewer()).Wrap(served))
	go server.Serve(listener) // ends with Close
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	request, err := http.NewRequest("GET", "https://"+listener.Addr().String()+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer prometheus")
	answer, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if body, _ := io.ReadAll(answer.Body); string(body) != "ktsn_up 1" || answer.TLS == nil || answer.ProtoMajor != 1 {
		t.Errorf("%s: %q", answer.Status, body)
	}
	if answer, err := http.Get("http://" + listener.Addr().String()); err == nil {
		answer.Body.Close()
		if answer.StatusCode == 200 {
			t.Error("it answers without TLS")
		}
	}
	if _, err := ListenTLS("127.0.0.1:0", "/nonexistent", "/nonexistent"); err == nil {
		t.Error("no certificate, and it listens")
	}
}

func TestCertificatesAreReadAgainAndMadeAgain(t *testing.T) {
	now := time.Now()
	folder := t.TempDir()
	pair := &keyPair{certFile: filepath.Join(folder, "tls.crt"), keyFile: filepath.Join(folder, "tls.key"), now: func() time.Time { return now }}
	write := func() []byte {
		made, err := ownCertificate(now)
		if err != nil {
			t.Fatal(err)
		}
		key, err := x509.MarshalPKCS8PrivateKey(made.PrivateKey)
		if err != nil {
			t.Fatal(err)
		}
		for path, block := range map[string]*pem.Block{
			pair.certFile: {Type: "CERTIFICATE", Bytes: made.Certificate[0]}, pair.keyFile: {Type: "PRIVATE KEY", Bytes: key},
		} {
			if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return made.Certificate[0]
	}
	is := func(what string, certificate []byte) {
		t.Helper()
		found, err := pair.get(nil)
		if err != nil || !bytes.Equal(found.Certificate[0], certificate) {
			t.Errorf("%s: %v", what, err)
		}
	}
	first := write()
	is("the first", first)
	second := write()
	is("not looked at again yet", first)
	now = now.Add(readEvery)
	is("the second", second)
	if err := os.WriteFile(pair.certFile, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	now = now.Add(readEvery)
	is("what was read before", second)
	own := &keyPair{now: func() time.Time { return now }}
	made, err := own.get(nil)
	if err != nil {
		t.Fatal(err)
	}
	now = now.Add(selfSigned - selfAgain - time.Hour)
	if again, _ := own.get(nil); !bytes.Equal(again.Certificate[0], made.Certificate[0]) {
		t.Error("made again too early")
	}
	now = now.Add(2 * time.Hour)
	if again, _ := own.get(nil); bytes.Equal(again.Certificate[0], made.Certificate[0]) {
		t.Error("not made again")
	}
}
