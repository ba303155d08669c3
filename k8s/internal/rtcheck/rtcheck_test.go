// SPDX-License-Identifier: Apache-2.0

package rtcheck

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"ktsn.io/ktsn/k8s/internal/eventually"
)

const document = `{"findings":[{"name":"wake_ups","state":"warn","value":"p50 9 µs","remedy":"look"}],"realtime":{"cells":[{"system":"host","profile":1,"measured_ns":10000000000,
"statistics":{"p99_9_ns":90000,"max_ns":120000}}],"verdicts":[
{"system":"host","profile":1,"service":"Motion","outcome":"FAIL","used_ratio":300,"margin_ratio":-299,"decided_by":"jitter"},
{"system":"host","profile":1,"service":"Remote control","outcome":"PASS","used_ratio":0.3,"margin_ratio":0.7,"decided_by":"latency"}]}}`

func TestResultsAreRead(t *testing.T) {
	result, err := Read([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	result.At = time.Unix(1, 0).UTC()
	want := `{"at":"1970-01-01T00:00:01Z","measured_ns":10000000000,"p99_9_ns":90000,"max_ns":120000,"services":[` +
		`{"service":"Motion","verdict":"FAIL","margin":-299},{"service":"Remote control","verdict":"PASS","margin":0.7}]}`
	if result.Text() != want {
		t.Errorf("%s\nexpected\n%s", result.Text(), want)
	}
	if again, ok := Parse(want); !ok || again.Text() != want {
		t.Errorf("%v %v", ok, again)
	}
	for _, text := range []string{"", "5", "{", strings.Repeat(" ", 70<<10) + "{}"} {
		if _, ok := Parse(text); ok {
			t.Errorf("%.20q was taken", text)
		}
	}
}

func TestResultsWithoutAVerdictAreNone(t *testing.T) {
	for _, part := range [][3]string{
		{`"outcome":"FAIL"`, `"outcome":"WELL"`, `a verdict "WELL"`},
		{`"realtime"`, `"other"`, "p50 9 µs; look"},
		{`"statistics":{"p99_9_ns":90000,"max_ns":120000}`, `"statistics":null`, "no statistics"},
		{`"cells":[{"system":"host"`, `"cells":[{"system":"qemu"`, "not one cell"},
		{`"max_ns":120000`, `"max_ns":-1`, "ktsn doctor"},
	} {
		text := strings.ReplaceAll(document, part[0], part[1])
		if _, err := Read([]byte(text)); err == nil || !strings.Contains(err.Error(), part[2]) {
			t.Errorf("%s: %v", part[1], err)
		}
	}
}

// program is a ktsn that does what the script says.
func program(t *testing.T, script string) Config {
	folder := t.TempDir()
	path := filepath.Join(folder, "ktsn")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return Config{Program: path, Duration: 300 * time.Millisecond}
}

func TestARunIsStartedAndRead(t *testing.T) {
	config := program(t, `[ "$*" = "doctor --wake-ups 300ms --json" ] || exit 9
echo "words beside it" >&2
cat <<'END'
`+document+"\nEND\n")
	result := Run(context.Background(), config)
	if result.Error != "" || len(result.Services) != 2 || time.Since(result.At) > time.Minute {
		t.Errorf("%+v", result)
	}
}

// TestTheProgramIsUnderstood: the built ktsn measures here, or says why it cannot.
func TestTheProgramIsUnderstood(t *testing.T) {
	target := os.Getenv("CARGO_TARGET_DIR")
	if target == "" {
		target = "../../../target"
	}
	path := filepath.Join(target, "debug/ktsn")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: built by scripts/go.sh test", err)
	}
	// The probe goes before all other threads: no other measurement may run.
	if err := os.MkdirAll("../../../out", 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Create("../../../out/.measure.lock")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	result := Run(context.Background(), Config{Program: path, Duration: time.Second})
	if result.Error != "" || result.MeasuredNs != 1e9 || len(result.Services) != 8 || result.MaxNs < result.P999Ns {
		t.Errorf("%+v", result)
	}
	// Without the probe there is its reason.
	t.Setenv("PATH", t.TempDir())
	if result = Run(context.Background(), Config{Program: path, Duration: time.Second}); !strings.Contains(result.Error, "`cyclictest` is not installed; apt-get") {
		t.Errorf("%+v", result)
	}
}

func TestAProgramThatSaysTooMuchIsRefused(t *testing.T) {
	result := Run(context.Background(), program(t, "yes | head -c 2000000"))
	if !strings.Contains(result.Error, "more than") {
		t.Errorf("%+v", result)
	}
}

func TestAFailedRunSaysWhy(t *testing.T) {
	result := Run(context.Background(), program(t, "yes x | head -c 5000 >&2; echo 'cyclictest is not installed' >&2; exit 3"))
	if !strings.HasSuffix(result.Error, "cyclictest is not installed") || len(result.Error) > 500 || result.Services != nil {
		t.Errorf("%+v", result)
	}
	result = Run(context.Background(), Config{Program: "/nonexistent/ktsn"})
	if !strings.Contains(result.Error, "/nonexistent/ktsn") {
		t.Errorf("%+v", result)
	}
	// A run that does not end is ended with the agent.
	config := program(t, "trap '' TERM; touch ${0%ktsn}begun; while :; do sleep 0.1; done")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan Result, 1)
	go func() { ended <- Run(ctx, config) }()
	eventually.Holds(t, "the run begins", func() bool {
		_, err := os.Stat(filepath.Join(filepath.Dir(config.Program), "begun"))
		return err == nil
	})
	cancel()
	if result = <-ended; !strings.Contains(result.Error, "ended") {
		t.Errorf("%+v", result)
	}
}
