// SPDX-License-Identifier: Apache-2.0

// Bench-cni measures what CNI's ADD costs: tsn-cni beside the standard bridge plugin, by turns.
//
// In: the built programs, root. Out: a ktsn.results/1 document with the distribution of each and the ratio of the medians. Each ADD
// gets a namespace of its own, without IPAM, and is taken back at once; ways change their order from round to round. `ktsnd`: the real
// daemon. `answers`: a daemon that says yes at once, which shows what is tsn-cni's own. `attach`: the call to ktsnd alone. Run directories are
// on tmpfs, as /run is on a node; tsn-cni's state is on a disk. Both plugins run as copies, written as the node agent installs them: a program
// right from the linker starts about 1 ms later, as the page cache has its file in other pieces.
// Everything it makes goes with it; it touches no device of the machine.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netns"
	"google.golang.org/grpc"

	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/nodefile"
)

// Bar of the project: tsn-cni's median against bridge's.
const bar = 1.5

func main() {
	bin := flag.String("bin", "target/release", "folder with ktsnd and tsn-cni")
	plugins := flag.String("plugins", "/usr/lib/cni", "folder with the bridge plugin")
	rounds := flag.Int("rounds", 40, "ADDs of each way")
	file := flag.String("json", "out/bench/cni.json", "where the document goes")
	flag.Parse()
	if err := run(*bin, *plugins, *rounds, *file); err != nil {
		fmt.Fprintln(os.Stderr, "bench-cni:", err)
		os.Exit(1)
	}
}

// A bench holds what is to be removed at its end.
type bench struct {
	directory, node string
	runDirs         string
	bin, plugins    string
	daemon          *exec.Cmd
	pods            int
}

func run(bin, plugins string, rounds int, file string) error {
	if os.Getuid() != 0 {
		return errors.New("it makes network namespaces: run it as root")
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	b := &bench{bin: bin, plugins: plugins, node: fmt.Sprintf("ktsnf%d-bench", os.Getpid())}
	defer b.close()
	if err := b.open(ctx); err != nil {
		return err
	}
	ways := []way{
		{"bridge", func(pod string) (time.Duration, error) { return b.addBridge(pod) }},
		{"tsn-cni.ktsnd", func(pod string) (time.Duration, error) { return b.addTSN(pod, "ktsnd") }},
		{"tsn-cni.answers", func(pod string) (time.Duration, error) { return b.addTSN(pod, "answers") }},
		{"attach", b.attach},
	}
	spans := map[string][]time.Duration{}
	// The first round warms caches and opens the uplink; it does not count.
	for round := range rounds + 1 {
		for index := range ways {
			way := ways[(index+round)%len(ways)]
			took, err := b.inPod(way.add)
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				return fmt.Errorf("%s: %w", way.name, err)
			}
			if round > 0 {
				spans[way.name] = append(spans[way.name], took)
			}
		}
	}
	return report(ways, spans, file)
}

type way struct {
	name string
	add  func(pod string) (time.Duration, error)
}

func command(name string, arguments ...string) error {
	if out, err := exec.Command(name, arguments...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(arguments, " "), err, out)
	}
	return nil
}

// Open makes the node, its uplink, the real daemon and the one that only answers.
func (b *bench) open(ctx context.Context) (err error) {
	if b.directory, err = os.MkdirTemp("", "bench-cni"); err != nil {
		return err
	}
	if b.runDirs, err = os.MkdirTemp("/dev/shm", "bench-cni"); err != nil {
		return err
	}
	for _, arguments := range []string{
		"netns add " + b.node, "-n " + b.node + " link set lo up",
		"-n " + b.node + " link add up0 type veth peer name far0", "-n " + b.node + " link set far0 up", "-n " + b.node + " link set up0 up",
		"-n " + b.node + " address add 192.168.50.1/24 dev up0", "-n " + b.node + " route add default dev up0",
	} {
		if err := command("ip", strings.Fields(arguments)...); err != nil {
			return err
		}
	}
	for _, plugin := range []string{filepath.Join(b.plugins, "bridge"), filepath.Join(b.bin, "tsn-cni")} {
		content, err := os.ReadFile(plugin)
		if err == nil {
			err = nodefile.WriteFile(filepath.Join(b.directory, filepath.Base(plugin)), content, 0o755)
		}
		if err != nil {
			return err
		}
	}
	for _, name := range []string{"ktsnd", "answers"} {
		if err := os.Mkdir(filepath.Join(b.runDirs, name), 0o700); err != nil {
			return err
		}
	}
	if err := b.answer(); err != nil {
		return err
	}
	return b.serve(ctx)
}

func (b *bench) serve(ctx context.Context) error {
	runDir := filepath.Join(b.runDirs, "ktsnd")
	config := filepath.Join(runDir, "ktsnd.toml")
	if err := os.WriteFile(config, []byte("[[port]]\ndevice = \"up0\"\ncpu = 1\n"), 0o600); err != nil {
		return err
	}
	b.daemon = exec.Command(filepath.Join(b.bin, "ktsnd"), "--config", config, "--run-dir", runDir, "--log", "error")
	b.daemon.Stderr = os.Stderr
	if err := within(b.node, b.daemon.Start); err != nil {
		b.daemon = nil
		return err
	}
	daemon := nodeapi.New(runDir)
	defer daemon.Close()
	return daemon.Compatible(ctx)
}

// A daemon that says yes.
type answers struct {
	nodeapi.UnimplementedNodeServer
}

func (answers) Version(context.Context, *nodeapi.VersionRequest) (*nodeapi.VersionReply, error) {
	return &nodeapi.VersionReply{Version: nodeapi.Version}, nil
}

func (answers) Attach(context.Context, *nodeapi.AttachRequest) (*nodeapi.AttachReply, error) {
	return &nodeapi.AttachReply{}, nil
}

func (answers) Detach(context.Context, *nodeapi.DetachRequest) (*nodeapi.DetachReply, error) {
	return &nodeapi.DetachReply{}, nil
}

func (b *bench) answer() error {
	listener, err := net.Listen("unix", filepath.Join(b.runDirs, "answers", nodeapi.SocketName))
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	nodeapi.RegisterNodeServer(server, answers{})
	go server.Serve(listener) // ends with the program
	return nil
}

func (b *bench) close() {
	if b.daemon != nil {
		b.daemon.Process.Signal(syscall.SIGTERM)
		b.daemon.Wait()
	}
	if _, err := os.Stat("/run/netns/" + b.node); err == nil {
		command("ip", "netns", "del", b.node)
	}
	os.RemoveAll(b.directory)
	os.RemoveAll(b.runDirs)
}

// Within runs a function on a thread in the namespace.
func within(namespace string, run func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		handle, err := netns.GetFromName(namespace)
		if err == nil {
			err = netns.Set(handle)
			handle.Close()
		}
		if err == nil {
			err = run()
		}
		done <- err
	}()
	return <-done
}

func (b *bench) inPod(add func(pod string) (time.Duration, error)) (time.Duration, error) {
	b.pods++
	pod := fmt.Sprintf("ktsnf%d-b%d", os.Getpid(), b.pods)
	if err := command("ip", "netns", "add", pod); err != nil {
		return 0, err
	}
	took, err := add(pod)
	return took, errors.Join(err, command("ip", "netns", "del", pod))
}

// Call runs a plugin's ADD, then its DEL, which is not measured.
func (b *bench) call(program, pod, stdin string) (took time.Duration, err error) {
	for _, verb := range []string{"ADD", "DEL"} {
		process := exec.Command(program)
		process.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+pod, "CNI_NETNS=/run/netns/"+pod, "CNI_IFNAME=net1",
			"CNI_PATH="+b.plugins)
		process.Stdin = strings.NewReader(stdin)
		var out bytes.Buffer
		process.Stdout, process.Stderr = &out, &out
		err := within(b.node, func() error {
			begin := time.Now()
			err := process.Run()
			if verb == "ADD" {
				took = time.Since(begin)
			}
			return err
		})
		if err != nil {
			return 0, fmt.Errorf("%s: %w: %s", verb, err, out.String())
		}
	}
	return took, nil
}

func (b *bench) addBridge(pod string) (time.Duration, error) {
	return b.call(filepath.Join(b.directory, "bridge"), pod, `{"cniVersion":"1.0.0","name":"bench","type":"bridge","bridge":"cnibench0"}`)
}

func (b *bench) addTSN(pod, daemon string) (time.Duration, error) {
	return b.call(filepath.Join(b.directory, "tsn-cni"), pod, fmt.Sprintf(
		`{"cniVersion":"1.0.0","name":"bench","type":"tsn-cni","uplink":"up0","destinations":["10.99.0.0/16"],"run_dir":%q,"state_dir":%q}`,
		filepath.Join(b.runDirs, daemon), filepath.Join(b.directory, "state")))
}

// Attach measures the one call that every ADD makes, on an interface that is there.
func (b *bench) attach(pod string) (time.Duration, error) {
	// The kernel removes the pair of the round before a while after its namespace: each round has a name of its own.
	host := fmt.Sprintf("bench%d", b.pods)
	for _, arguments := range []string{
		"-n " + b.node + " link add " + host + " type veth peer name net1 netns " + pod, "-n " + b.node + " link set " + host + " up", "-n " + pod + " link set net1 up",
	} {
		if err := command("ip", strings.Fields(arguments)...); err != nil {
			return 0, err
		}
	}
	daemon := nodeapi.New(filepath.Join(b.runDirs, "ktsnd"))
	defer daemon.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := daemon.Compatible(ctx); err != nil { // the connection is made here
		return 0, err
	}
	begin := time.Now()
	_, err := daemon.Attach(ctx, &nodeapi.AttachRequest{Attachment: fmt.Sprintf(
		`{"name":%[1]q,"netns":"/run/netns/%[1]s","interface":"net1","uplink":"up0","destinations":["10.99.0.0/16"]}`, pod)})
	took := time.Since(begin)
	if err == nil {
		_, err = daemon.Detach(ctx, &nodeapi.DetachRequest{Name: pod})
	}
	return took, err
}

func at(sorted []time.Duration, part float64) time.Duration {
	return sorted[min(int(part*float64(len(sorted))), len(sorted)-1)]
}

func report(ways []way, spans map[string][]time.Duration, file string) error {
	document := map[string]any{
		"schema": "ktsn.results/1", "experiment": "cni", "command": append([]string{"bench-cni"}, os.Args[1:]...),
		"started_at":  time.Now().UTC().Format(time.RFC3339),
		"environment": map[string]any{"cpus": runtime.NumCPU(), "versions": map[string]string{"ktsn": nodeapi.Version, "go": runtime.Version()}},
		"parameters":  map[string]any{"rounds": len(spans["bridge"]), "interleaved": true, "ipam": "none", "run_dir": "tmpfs"},
	}
	var micro []map[string]any
	median := map[string]time.Duration{}
	for _, way := range ways {
		sorted := slices.Sorted(slices.Values(spans[way.name]))
		median[way.name] = at(sorted, 0.5)
		micro = append(micro, map[string]any{"name": "cni.add." + way.name, "unit": "ns", "samples": len(sorted), "p50": at(sorted, 0.5), "p90": at(sorted, 0.9)})
		fmt.Printf("%-18s p50 %8.2f ms  p90 %8.2f ms  (%d)\n", way.name, at(sorted, 0.5).Seconds()*1e3, at(sorted, 0.9).Seconds()*1e3, len(sorted))
	}
	var comparisons []map[string]any
	for _, name := range []string{"tsn-cni.ktsnd", "tsn-cni.answers"} {
		ratio := median[name].Seconds() / median["bridge"].Seconds()
		comparison := map[string]any{"metric": "cni_add_ns.p50", "of": name, "to": "bridge", "ratio": ratio}
		if name == "tsn-cni.ktsnd" {
			comparison["bar"], comparison["holds"] = bar, ratio <= bar
		}
		comparisons = append(comparisons, comparison)
		fmt.Printf("%s / bridge: %.2f\n", name, ratio)
	}
	document["micro"], document["comparisons"] = micro, comparisons
	content, err := json.MarshalIndent(document, "", " ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o755)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(content, '\n'), 0o644)
}
