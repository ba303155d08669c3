// SPDX-License-Identifier: Apache-2.0

package rtcheck

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const document = `{"schema":"ktsn.results/1","experiment":"rt","realtime":{"cells":[{"system":"host","profile":1,"measured_ns":10000000000,
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
		{`"statistics":{"p99_9_ns":90000,"max_ns":120000}`, `"skip":{"kind":"no_fifo_right","reason":"why"}`, "why (no_fifo_right)"},
		{`"statistics":{"p99_9_ns":90000,"max_ns":120000}`, `"statistics":null`, "no statistics"},
		{`"cells":[{"system":"host"`, `"cells":[{"system":"qemu"`, "not one cell"},
		{`"max_ns":120000`, `"max_ns":-1`, "rt.json"},
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
	return Config{Program: path, Dir: filepath.Join(folder, "check"), Duration: 300 * time.Millisecond}
}

func TestARunIsStartedAndLeavesNothing(t *testing.T) {
	config := program(t, `[ "$*" = "rt run --system host --profile 1 --duration 300ms --out $PWD/rt" ] || exit 9
[ -e old ] && exit 8
mkdir rt && cat >rt/rt.json <<'END'
`+document+"\nEND\n")
	if err := os.MkdirAll(filepath.Join(config.Dir, "old"), 0o700); err != nil {
		t.Fatal(err)
	}
	result := Run(context.Background(), config)
	if result.Error != "" || len(result.Services) != 2 || time.Since(result.At) > time.Minute {
		t.Errorf("%+v", result)
	}
	if _, err := os.Stat(config.Dir); !os.IsNotExist(err) {
		t.Errorf("the directory is left: %v", err)
	}
}

func TestAFailedRunSaysWhy(t *testing.T) {
	result := Run(context.Background(), program(t, "yes x | head -c 5000 >&2; echo 'cyclictest is not installed' >&2; exit 3"))
	if !strings.HasSuffix(result.Error, "cyclictest is not installed") || len(result.Error) > 500 || result.Services != nil {
		t.Errorf("%+v", result)
	}
	result = Run(context.Background(), Config{Program: "/nonexistent/ktsn", Dir: filepath.Join(t.TempDir(), "check")})
	if !strings.Contains(result.Error, "/nonexistent/ktsn") {
		t.Errorf("%+v", result)
	}
	// A run that does not end is ended with the agent.
	config := program(t, "trap '' TERM; touch ../begun; while :; do sleep 0.1; done")
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for {
			if _, err := os.Stat(filepath.Join(filepath.Dir(config.Dir), "begun")); err == nil {
				cancel()
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	if result = Run(ctx, config); !strings.Contains(result.Error, "ended") {
		t.Errorf("%+v", result)
	}
}
