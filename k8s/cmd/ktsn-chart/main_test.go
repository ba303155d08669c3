// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// kubectl is a cluster of one node, which takes all objects and where the short pods find no fault.
const kubectl = `#!/bin/sh
case "$*" in
*/version*) echo '{"gitVersion": "v1.34.4"}' ;;
*/apis\ *) echo '{"groups": [{"name": "k8s.cni.cncf.io"}]}' ;;
*/nodes*) echo '{"items": [{"metadata": {"name": "n1"}, "status": {"nodeInfo": {"operatingSystem": "linux", "architecture": "'"$ARCHITECTURE"'",
    "kernelVersion": "6.1"}, "conditions": [{"type": "Ready", "status": "True"}]}}]}' ;;
*/pods*) echo '{"items": [{"spec": {"nodeName": "n1"}, "status": {"containerStatuses": [{"state": {"terminated": {"exitCode": 0}}}]}}]}' ;;
config*) echo '{}' ;;
get*) echo '{"items": []}' ;;
apply*) cat >/dev/null ;;
esac
`

// As ktsn-chart it is that program.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "ktsn-chart" {
		main()
		return
	}
	os.Exit(m.Run())
}

// install runs `ktsn k8s install` with programs of this folder: its output, what it says, its exit status.
func install(t *testing.T, folder, stdin string, words ...string) (output, said string, status int) {
	t.Helper()
	target := os.Getenv("CARGO_TARGET_DIR")
	if target == "" {
		target = "../../../target"
	}
	command := exec.Command(filepath.Join(target, "debug/ktsn"), append([]string{"k8s", "install"}, words...)...)
	command.Env = []string{"PATH=" + folder + ":/bin:/usr/bin", "ARCHITECTURE=" + runtime.GOARCH}
	command.Stdin = strings.NewReader(stdin)
	var out, err strings.Builder
	command.Stdout, command.Stderr = &out, &err
	if failed := command.Run(); command.ProcessState == nil {
		t.Fatalf("%v: scripts/go.sh test builds it", failed)
	}
	return out.String(), err.String(), command.ProcessState.ExitCode()
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../deploy/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// What `ktsn k8s install` applies is what the recorded manifests say, but for the program that installs.
func TestKtsnInstallsWhatTheChartRenders(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "kubectl"), []byte(kubectl), 0o755); err != nil {
		t.Fatal(err)
	}
	_, said, status := install(t, folder, "")
	if status != 3 || !strings.Contains(said, "install the package ktsn-k8s") {
		t.Errorf("without the program: exit status %d: %s", status, said)
	}
	own, err := os.Executable()
	if err == nil {
		err = os.Symlink(own, filepath.Join(folder, "ktsn-chart"))
	}
	if err != nil {
		t.Fatal(err)
	}
	// The sum of the ConfigMap, which names the program that installs.
	sum := regexp.MustCompile("checksum/config: [0-9a-f]{64}")
	for _, c := range []struct {
		recorded, stdin string
		words           []string
	}{
		{"manifests/ktsn.yaml", "", nil},
		{"check/variants/dual-stack.yaml", read(t, "check/variants/dual-stack.values.yaml"), []string{"--values", "/dev/stdin"}},
		{"check/variants/monitoring.yaml", "", []string{"--set", "monitoring.rules=true", "--set", "monitoring.labels.release=prometheus"}},
	} {
		_, want, _ := strings.Cut(read(t, c.recorded), "---\n")
		found, said, status := install(t, folder, c.stdin, append(c.words, "--dry-run", "--tag", "dev")...)
		found = strings.ReplaceAll(found, "managed-by: ktsn", "managed-by: Helm")
		if !strings.HasSuffix(sum.ReplaceAllString(found, ""), "---\n"+sum.ReplaceAllString(want, "")) || status != 0 {
			t.Errorf("%s: exit status %d: %s\n%s", c.recorded, status, said, found)
		}
	}
	for _, c := range []struct {
		words []string
		said  string
	}{
		{[]string{"--set", "agent.lok=debug"}, "ktsn k8s: --set agent.lok: the chart has no such value; there are "},
		{[]string{"--values", "/nowhere.yaml"}, "ktsn k8s: --values /nowhere.yaml: no such file or directory\n"},
	} {
		if _, said, status := install(t, folder, "", c.words...); status != 2 || !strings.HasPrefix(said, c.said) {
			t.Errorf("%v: exit status %d: %s", c.words, status, said)
		}
	}
}
