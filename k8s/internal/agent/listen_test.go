// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"

	"ktsn.io/ktsn/k8s/internal/guard"
)

// Without a flag only this node reaches the agent.
func TestTheAgentListensOnLoopback(t *testing.T) {
	c, err := parse(nil, "--node-name=kn1", "--tsn-cidr=10.99.0.0/16")
	if err != nil || !strings.HasPrefix(c.Listen, "127.0.0.1:") || c.SecureListen != "" {
		t.Errorf("%q, %q, %v", c.Listen, c.SecureListen, err)
	}
}

// At the address that others reach, metrics are for users that the API server allows, and faults have no text.
func TestTheListenerForOthersIsGuarded(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Overlay, c.SecureListen = false, "127.0.0.1:0" }, nil, node("kn1", "192.0.2.1", nil, 0))
	reviews := b.kube
	reviews.PrependReactor("create", "tokenreviews", func(action ktesting.Action) (bool, runtime.Object, error) {
		review := action.(ktesting.CreateAction).GetObject().(*authentication.TokenReview)
		review.Status.Authenticated, review.Status.User.Username = review.Spec.Token != "nobody", review.Spec.Token
		return true, review, nil
	})
	reviews.PrependReactor("create", "subjectaccessreviews", func(action ktesting.Action) (bool, runtime.Object, error) {
		review := action.(ktesting.CreateAction).GetObject().(*authorization.SubjectAccessReview)
		review.Status.Allowed = review.Spec.User == "prometheus" && review.Spec.NonResourceAttributes.Path == "/metrics"
		return true, review, nil
	})
	servers, err := b.listen()
	if err != nil || len(servers) != 1 {
		t.Fatalf("%d servers, %v", len(servers), err)
	}
	defer servers[0].Close()
	server := httptest.NewUnstartedServer(servers[0].Handler)
	if server.Listener, err = guard.ListenTLS("127.0.0.1:0", "", ""); err != nil {
		t.Fatal(err)
	}
	server.Start()
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	get := func(path, token string) (int, string) {
		t.Helper()
		request, err := http.NewRequest("GET", "https://"+server.Listener.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		answer, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, _ := io.ReadAll(answer.Body)
		return answer.StatusCode, string(body)
	}
	for token, want := range map[string]int{"": 401, "nobody": 401, "other": 403, "prometheus": 200} {
		status, body := get("/metrics", token)
		if status != want || strings.Contains(body, "ktsn_slots") != (want == 200) {
			t.Errorf("token %q: %d, expected %d: %.100s", token, status, want, body)
		}
	}
	if status, body := get("/readyz", ""); status != 503 || strings.Contains(body, "device-plugin") {
		t.Errorf("/readyz: %d: %s", status, body)
	}
	if status, _ := get("/livez", ""); status != 200 {
		t.Errorf("/livez: %d", status)
	}
	b.beats.now = func() time.Time { return time.Now().Add(-2 * stuckAfter) }
	b.beats.begin("policies")
	b.beats.now = time.Now
	if status, body := get("/livez", ""); status != 503 || strings.Contains(body, "policies") {
		t.Errorf("/livez of a stuck agent: %d: %s", status, body)
	}
	if body := b.get("/livez"); !strings.Contains(body, "stuck: policies") {
		t.Errorf("/livez on this node: %s", body)
	}
}

// Both addresses answer, each by its own rules: the one without TLS to this node, the other to whom the API server lets.
func TestEachAddressHasItsOwnServer(t *testing.T) {
	free := func() string {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		return listener.Addr().String()
	}
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	for range 20 {
		here, secure := free(), free()
		b := newBench(t, func(c *Config) { c.Overlay, c.Listen, c.SecureListen = false, here, secure }, nil, node("kn1", "192.0.2.1", nil, 0))
		servers, err := b.listen()
		if err != nil {
			t.Fatal(err)
		}
		for address, want := range map[string]int{"http://" + here: 200, "https://" + secure: 401} {
			answer, err := client.Get(address + "/metrics")
			if err != nil {
				t.Fatalf("%s: %v", address, err)
			}
			answer.Body.Close()
			if answer.StatusCode != want {
				t.Fatalf("%s: %d, expected %d", address, answer.StatusCode, want)
			}
		}
		for _, server := range servers {
			server.Close()
		}
	}
}
