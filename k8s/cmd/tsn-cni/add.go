// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"ktsn.io/ktsn/k8s/internal/cniconf"
	"ktsn.io/ktsn/k8s/internal/cnistate"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/nodefile"
	"ktsn.io/ktsn/k8s/internal/podlink"
)

// How long a verb waits: for another run of the same interface, for ktsnd's version or its list (it answers these whatever else it does),
// for an attachment (many pods at once wait for each other), for CHECK's looks. Runtimes give a plugin two minutes and more.
const (
	lockPatience    = 30 * time.Second
	versionPatience = 3 * time.Second
	attachPatience  = 60 * time.Second
	checkPatience   = 30 * time.Second
)

// addition is one ADD.
type addition struct {
	args      *skel.CmdArgs
	conf      *cniconf.Conf
	directory cnistate.Directory
	state     *cnistate.State
	node      *nodefile.Node
	daemon    *nodeapi.Daemon

	addresses []net.IP
	routes    []*net.IPNet
	link      *podlink.Link

	// By attach, for finish.
	printed types.Result
	commit  func() error
}

func add(args *skel.CmdArgs) error {
	conf, err := cniconf.Parse(args.StdinData, args.Args)
	if err != nil {
		return err
	}
	if err := errors.Join(conf.CheckChain(), conf.CheckIPAM()); err != nil {
		return err
	}
	if !conf.IsWanted() {
		return printUntouched(conf)
	}
	a := &addition{args: args, conf: conf, directory: cnistate.Open(conf.StateDir)}
	unlock, err := locked(a.directory, args)
	if err != nil {
		return err
	}
	defer unlock()
	return a.run(context.Background())
}

// locked waits for other runs of the same interface. The returned function gives the lock back.
func locked(directory cnistate.Directory, args *skel.CmdArgs) (func(), error) {
	ctx, cancel := context.WithTimeout(context.Background(), lockPatience)
	defer cancel()
	unlock, err := directory.Lock(ctx, args.ContainerID, args.IfName)
	if err != nil {
		return nil, stateFault(directory, err)
	}
	return unlock, nil
}

func stateFault(directory cnistate.Directory, err error) error {
	if errors.Is(err, cnistate.ErrBusy) {
		return err
	}
	return failure(codeState, "state directory %s: %v", directory.Path(), err)
}

// run does all steps of ADD. It takes back what it has done when it fails.
func (a *addition) run(ctx context.Context) error {
	a.daemon = daemonAt(nodeapi.RunDir(a.conf.RunDir))
	if err := a.prepareState(ctx); err != nil {
		return err
	}
	if err := compatible(ctx, a.daemon); err != nil { // without ktsnd ADD begins nothing
		return err
	}
	if err := a.reserve(ctx); err != nil {
		return err
	}
	a.state.Unattached = true
	defer func() {
		if a.link != nil {
			a.link.Close()
		}
	}()
	for _, step := range steps {
		testKillPoint("before " + step.name)
		if err := step.do(a, ctx); err != nil {
			return withUndo(err, undo(ctx, a.directory, a.state))
		}
	}
	testKillPoint("before result")
	if err := a.finish(); err != nil {
		return withUndo(err, undo(ctx, a.directory, a.state))
	}
	return nil
}

// begin runs a call beside the caller. The function that it returns waits for the call's error.
func begin(call func() error) func() error {
	done := make(chan error, 1)
	go func() { done <- call() }()
	return sync.OnceValue(func() error { return <-done })
}

// daemonAt returns a client of ktsnd that gives up soon where ktsnd does not listen.
func daemonAt(runDir string) *nodeapi.Daemon {
	daemon := nodeapi.New(runDir)
	daemon.AbsencePatience = absencePatience
	return daemon
}

func compatible(ctx context.Context, daemon *nodeapi.Daemon) error {
	ctx, cancel := context.WithTimeout(ctx, versionPatience)
	defer cancel()
	return daemon.Compatible(ctx)
}

// reserve writes the state file before the first step; from here on the interface counts.
func (a *addition) reserve(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	err := a.directory.Reserve(ctx, a.state, capacityOf(a.node))
	if errors.Is(err, cnistate.ErrFull) {
		return spent(err)
	}
	if err != nil {
		return stateFault(a.directory, err)
	}
	return nil
}

// capacityOf returns the node's capacity; 0: not limited. Attachments beyond it would make the others late.
func capacityOf(node *nodefile.Node) int {
	if node == nil {
		return 0
	}
	return max(node.Capacity, 0)
}

func spent(err error) error {
	return failure(codeCapacity, "this node's TSN capacity is spent: %v (pods that ask for ktsn.io/tsn wait for a free node)", err)
}

func withUndo(err, undoErr error) error {
	if undoErr == nil {
		return err
	}
	found := coded(err)
	return types.NewError(found.Code, found.Msg, strings.TrimSpace(found.Details+" Not all of it could be taken back; DEL or GC will: "+undoErr.Error()))
}

// prepareState checks all that can be checked before the first step, and removes what an interrupted run has left.
func (a *addition) prepareState(ctx context.Context) (err error) {
	runDir := nodeapi.RunDir(a.conf.RunDir)
	if err := namespaceOf(a.args); err != nil {
		return err
	}
	if err := a.clean(ctx, runDir); err != nil {
		return err
	}
	if err := refuseByPolicy(a.conf, runDir); err != nil {
		return err
	}
	if a.node, err = readNode(runDir); err != nil {
		return err
	}
	fillIn(a.conf, a.node)
	a.state = freshState(a.args, a.conf, runDir)
	if a.conf.IsChained() {
		if err := a.chainedInterface(); err != nil {
			return err
		}
	} else {
		a.state.HostInterface = cnistate.HostInterface(a.args.ContainerID, a.args.IfName)
		if a.conf.IPAMType != "" {
			if _, err := invoke.FindInPath(a.conf.IPAMType, filepath.SplitList(a.args.Path)); err != nil {
				return failure(types.ErrInvalidNetworkConfig, "ipam: %v", err)
			}
			input, err := ipamInput(a.args.StdinData, a.conf, a.node)
			if err != nil {
				return err
			}
			a.state.IPAM = &cnistate.IPAM{Type: a.conf.IPAMType, Config: input, Args: a.args.Args, Path: a.args.Path}
		}
	}
	return nil
}

// namespaceOf refuses a namespace that does not exist, and the node's own.
func namespaceOf(args *skel.CmdArgs) error {
	var pod, own unix.Stat_t
	var kind unix.Statfs_t
	err := unix.Stat(args.Netns, &pod)
	if err == nil {
		err = unix.Statfs(args.Netns, &kind)
	}
	if err != nil {
		return failure(types.ErrInvalidNetNS, "CNI_NETNS %s: %v", args.Netns, err)
	}
	if kind.Type != unix.NSFS_MAGIC {
		return failure(types.ErrInvalidNetNS, "CNI_NETNS %s is no network namespace", args.Netns)
	}
	if err := unix.Stat("/proc/self/ns/net", &own); err != nil {
		return failure(types.ErrInvalidNetNS, "the node's own network namespace: %v", err)
	}
	if pod.Dev == own.Dev && pod.Ino == own.Ino {
		return failure(types.ErrInvalidNetNS, "CNI_NETNS %s is the node's own network namespace", args.Netns)
	}
	return nil
}

func freshState(args *skel.CmdArgs, conf *cniconf.Conf, runDir string) *cnistate.State {
	policies := conf.Policies
	if policies == "agent" {
		policies = ""
	}
	return &cnistate.State{
		ContainerID: args.ContainerID, IfName: args.IfName, Netns: args.Netns, Network: conf.Name, Pod: conf.Pod,
		Attachment: cnistate.AttachmentName(args.ContainerID, args.IfName), Capture: conf.Attachment.Read().Capture, Policies: policies,
		RunDir: runDir, DeviceID: conf.DeviceID,
	}
}

// clean takes back what an interrupted ADD of the same name has left. A finished ADD is an error of the caller.
func (a *addition) clean(ctx context.Context, runDir string) error {
	payOwed(ctx, a.directory, runDir, a.args.ContainerID, a.args.IfName)
	old, err := a.directory.Load(a.args.ContainerID, a.args.IfName)
	if errors.Is(err, cnistate.ErrBroken) {
		old, err = guessedState(a.args, a.conf.RunDir), nil
	}
	if err != nil {
		return stateFault(a.directory, err)
	}
	if old == nil {
		return nil
	}
	if old.Done && old.Netns == a.args.Netns && podlink.CheckForeign(old.Netns, old.IfName) == nil {
		return failure(codeExists, "%s of this container is attached already (network %s): DEL comes before a second ADD",
			a.args.IfName, old.Network)
	}
	return undo(ctx, a.directory, old)
}

func (a *addition) chainedInterface() error {
	if err := podlink.CheckForeign(a.args.Netns, a.args.IfName); err != nil {
		return failure(types.ErrInvalidNetworkConfig, "tsn-cni stands behind another plugin, which made no %s in the pod: %v", a.args.IfName, err)
	}
	return nil
}

// makeLink comes before IPAM: a plugin such as dhcp asks for an address over the link.
func (a *addition) makeLink(context.Context) (err error) {
	if a.conf.IsChained() {
		return nil
	}
	a.link, err = podlink.Make(podlink.Spec{
		Netns: a.args.Netns, Interface: a.args.IfName, Host: a.state.HostInterface, MTU: mtuOf(a.conf, a.node), MAC: a.conf.MAC,
	})
	if err != nil && !errors.Is(err, podlink.ErrExists) {
		return failure(codeLink, "%v", err)
	}
	return err
}

// configureLink sets IPAM's addresses and routes.
func (a *addition) configureLink(context.Context) error {
	if a.conf.IsChained() {
		return nil
	}
	if a.node != nil && len(a.addresses) > 0 {
		for _, prefix := range a.node.CIDRs {
			if _, cidr, err := net.ParseCIDR(prefix); err == nil {
				a.addRoute(cidr)
			}
		}
	}
	a.routes = widest(a.routes)
	if err := podlink.Forward(a.addresses); err != nil {
		return failure(codeLink, "the node does not forward packets: %v", err)
	}
	if err := a.link.Configure(a.addresses, a.routes); err != nil {
		return failure(codeLink, "%v", err)
	}
	return nil
}

// widest leaves out prefixes that are part of a wider one in the list.
func widest(prefixes []*net.IPNet) []*net.IPNet {
	var kept []*net.IPNet
	for index, prefix := range prefixes {
		length, bits := prefix.Mask.Size()
		held := false
		for other, outer := range prefixes {
			outerLength, outerBits := outer.Mask.Size()
			held = held || (other != index && outerBits == bits && outerLength > 0 && outerLength < length && outer.Contains(prefix.IP))
		}
		if !held {
			kept = append(kept, prefix)
		}
	}
	return kept
}

func (a *addition) attach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, attachPatience)
	defer cancel()
	attachment := maps.Clone(a.conf.Attachment)
	attachment.Set("name", a.state.Attachment)
	attachment.Set("netns", a.args.Netns)
	attachment.Set("interface", a.args.IfName)
	if !attachment.Has("addresses") {
		given, err := a.given()
		if err != nil {
			return err
		}
		if len(given) > 0 {
			attachment.Set("addresses", given)
		}
	}
	call := func() error {
		_, err := a.daemon.Attach(ctx, &nodeapi.AttachRequest{Attachment: attachment.JSON()})
		return err
	}
	a.state.Unattached = false
	waitForAttach := begin(call)
	// ADD prepares its result while ktsnd works.
	prepareErr := a.prepare()
	err := waitForAttach()
	if nodeapi.CodeOf(err) == codes.AlreadyExists {
		// Only this container has the name. Its attachment is left from before the state was lost.
		if _, err = a.daemon.Detach(ctx, &nodeapi.DetachRequest{Name: a.state.Attachment}); err == nil {
			err = call()
		}
	}
	return errors.Join(a.refusal(err), prepareErr)
}

// refusal gives an error of Attach the path of the field in tsn-cni's own input.
func (a *addition) refusal(err error) error {
	var found *nodeapi.Error
	if !errors.As(err, &found) || found.Words == "" {
		return err
	}
	message := a.conf.InOwnWords(found.Words)
	if found.Code == codes.InvalidArgument {
		return failure(types.ErrInvalidNetworkConfig, "invalid network configuration: %s", message)
	}
	found.Text = "ktsnd: Attach: " + message
	return found
}

// prepare makes the result and writes the state of a finished ADD beside the current one.
func (a *addition) prepare() error {
	result, err := a.result()
	if err != nil {
		return err
	}
	printed, err := result.GetAsVersion(a.conf.CNIVersion)
	if err != nil {
		return failure(types.ErrIncompatibleCNIVersion, "result: %v", err)
	}
	if a.state.Result, err = json.Marshal(printed); err != nil {
		return err
	}
	done := *a.state
	done.Done = true
	a.printed = printed
	if a.commit, err = a.directory.Prepare(&done); err != nil {
		return stateFault(a.directory, err)
	}
	return nil
}

// finish replaces the state by the finished one, and prints the result.
func (a *addition) finish() error {
	if err := a.commit(); err != nil {
		return stateFault(a.directory, err)
	}
	a.state.Done = true
	return a.printed.Print()
}

func (a *addition) result() (types.Result, error) {
	if a.conf.IsChained() {
		return previous(a.conf)
	}
	result := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, DNS: a.conf.DNS, Interfaces: []*types100.Interface{
		{Name: a.state.HostInterface, Mac: a.link.HostMAC.String(), Mtu: a.link.MTU},
		{Name: a.args.IfName, Mac: a.link.PodMAC.String(), Mtu: a.link.MTU, Sandbox: a.args.Netns},
	}}
	for _, address := range a.addresses {
		result.IPs = append(result.IPs, &types100.IPConfig{
			Interface: types100.Int(1), Address: *podlink.HostAddress(address), Gateway: podlink.NextHop(address),
		})
	}
	for _, prefix := range a.routes {
		result.Routes = append(result.Routes, &types.Route{Dst: *prefix, GW: podlink.NextHop(prefix.IP)})
	}
	return result, nil
}
