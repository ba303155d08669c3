// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// bloated is an API server on which users of one namespace have made long objects: 500 NetworkPolicies and 300 Streams of 250 kB.
type bloated struct {
	mutex   sync.Mutex
	watched map[string]bool
}

const bloatOctets = 250_000

// fillers are the parts of an object that a user can make long without the object meaning anything else: one string, many small objects
// (which take a multiple of their text in memory), and what stands in the status.
func fillers(version string) []string {
	long := strings.Repeat("x", bloatOctets)
	var fields strings.Builder
	for number := 0; fields.Len() < bloatOctets; number++ {
		fmt.Fprintf(&fields, `"f:k%d":{},`, number)
	}
	return []string{
		fmt.Sprintf(`"annotations":{"filler":%q}},"status":{}`, long),
		fmt.Sprintf(`"managedFields":[{"manager":"m","operation":"Update","apiVersion":%q,"fieldsType":"FieldsV1","fieldsV1":{%s"f:z":{}}}]},"status":{}`, version, fields.String()),
		fmt.Sprintf(`"annotations":{}},"status":{"conditions":[{"type":"Admitted","status":"False","reason":"r","message":%q,"lastTransitionTime":"2026-01-01T00:00:00Z"}]}`, long),
	}
}

func (s *bloated) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query, resource := r.URL.Query(), filepath.Base(r.URL.Path)
	if query.Get("watch") != "" {
		s.mutex.Lock()
		s.watched[resource] = true
		s.mutex.Unlock()
		<-r.Context().Done()
		return
	}
	w.Header().Set("Content-Type", "application/json")
	kind, version := "List", "v1"
	spec, count := `{}`, 0
	switch resource {
	case "networkpolicies":
		kind, version, count, spec = "NetworkPolicyList", "networking.k8s.io/v1", 500, `{"podSelector":{"matchLabels":{"app":"x"}}}`
	case "streams":
		kind, version, count, spec = "StreamList", "ktsn.io/v1alpha1", 300, `{"talker":{"podSelector":{"matchLabels":{"app":"x"}}},"priority":5}`
	case "gateschedules":
		kind, version = "GateScheduleList", "ktsn.io/v1alpha1"
	case "nodes":
		kind = "NodeList"
	case "pods":
		kind = "PodList"
	}
	limit, _ := strconv.Atoi(query.Get("limit"))
	from, _ := strconv.Atoi(query.Get("continue"))
	to, next := count, ""
	if limit > 0 && from+limit < count {
		to = from + limit
		next = strconv.Itoa(to)
	}
	fmt.Fprintf(w, `{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":"1","continue":%q},"items":[`, kind, version, next)
	long := fillers(version)
	for number := from; number < to; number++ {
		if number > from {
			fmt.Fprint(w, ",")
		}
		fmt.Fprintf(w, `{"apiVersion":%q,"kind":%q,"spec":%s,"metadata":{"namespace":"a","name":"o%d","uid":"u%d",%s}`,
			version, strings.TrimSuffix(kind, "List"), spec, number, number, long[number%len(long)])
	}
	fmt.Fprint(w, "]}")
}

// PeakOf runs a program of k8s/cmd with the memory limit that the chart gives it, and --kubeconfig for an API server full of long objects,
// until the program has listed all of these resources. It returns how many KiB were resident at most, and what the program has logged.
func PeakOf(t *testing.T, name string, arguments []string, resources ...string) (peak int, said string) {
	t.Helper()
	server := &bloated{watched: map[string]bool{}}
	web := httptest.NewServer(server)
	t.Cleanup(web.Close) // after the program has ended
	folder := t.TempDir()
	program, kubeconfig := filepath.Join(folder, name), filepath.Join(folder, "kubeconfig")
	if out, err := exec.Command("go", "build", "-o", program, "ktsn.io/ktsn/k8s/cmd/"+name).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: '" + web.URL + "'}}]\n" +
		"contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	running := exec.Command(program, append(slices.Clone(arguments), "--kubeconfig="+kubeconfig)...)
	running.Env = append(os.Environ(), "GOMEMLIMIT=224MiB") // the chart's
	log, err := os.Create(filepath.Join(folder, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	running.Stdout, running.Stderr = log, log
	if err := running.Start(); err != nil {
		t.Fatal(err)
	}
	logged := func() string {
		text, _ := os.ReadFile(log.Name()) // empty where it cannot be read
		return string(text)
	}
	ended := make(chan error, 1)
	go func() { ended <- running.Wait() }()
	t.Cleanup(func() { running.Process.Kill(); <-ended })
	seen := func() bool {
		server.mutex.Lock()
		defer server.mutex.Unlock()
		return !slices.ContainsFunc(resources, func(resource string) bool { return !server.watched[resource] })
	}
	for end := time.Now().Add(2 * time.Minute); !seen(); time.Sleep(10 * time.Millisecond) {
		if len(ended) > 0 || time.Now().After(end) {
			running.Process.Kill()
			err := <-ended
			ended <- err
			t.Fatalf("not all was seen: %v\n%s", err, logged())
		}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", running.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	if _, err := fmt.Sscan(rest, &peak); err != nil {
		t.Fatalf("%v: %s", err, status)
	}
	return peak, logged()
}
