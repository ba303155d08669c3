// SPDX-License-Identifier: Apache-2.0

// Command multinet is a double of Multus, which cannot be had as a Go module: a meta-plugin that follows the de facto
// standard of the Network Plumbing Working Group (Kubernetes Network Custom Resource Definition, v1.3), as far as this
// project's tests need it. It is a test tool and no product.
//
// In: CNI calls from the runtime, its configuration, the pod and its NetworkAttachmentDefinitions. Out: the default
// network's plugins called, then one delegate for each network that the pod asks for, with what Multus adds (args.cni,
// deviceID, pciBusID, runtimeConfig, CNI_ARGS), and the pod's network-status annotation. As Multus 4.2 with clusterNetwork,
// it hands DEL a configuration without the plugin's own fields. It must never be kinder to a delegate than Multus is.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// callMax bounds one call: below the four minutes that kubelet grants a sandbox.
const callMax = 90 * time.Second

// config is multinet's own configuration.
type config struct {
	types.NetConf
	API            apiAccess `json:"api"`
	ClusterNetwork string    `json:"clusterNetwork"` // file of the default network
	BinDir         string    `json:"binDir"`
	CacheDir       string    `json:"cacheDir"`
}

// call is one CNI call under way.
type call struct {
	args   *skel.CmdArgs
	conf   config
	pod    podArgs
	libcni *libcni.CNIConfig
}

func newCall(args *skel.CmdArgs) (*call, error) {
	c := &call{args: args}
	if err := json.Unmarshal(args.StdinData, &c.conf); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "multinet: configuration", err.Error())
	}
	if err := types.LoadArgs(args.Args, &c.pod); err != nil {
		return nil, types.NewError(types.ErrInvalidEnvironmentVariables, "multinet: CNI_ARGS", err.Error())
	}
	c.libcni = libcni.NewCNIConfigWithCacheDir([]string{c.conf.BinDir}, c.conf.CacheDir, nil)
	return c, nil
}

// runtime is what libcni needs to call a delegate.
func (c *call) runtime(d *delegate) *libcni.RuntimeConf {
	rt := &libcni.RuntimeConf{ContainerID: c.args.ContainerID, NetNS: c.args.Netns, IfName: d.IfName, CapabilityArgs: d.Capabilities}
	for _, pair := range [][2]string{
		{"IgnoreUnknown", "true"},
		{"K8S_POD_NAMESPACE", string(c.pod.K8S_POD_NAMESPACE)},
		{"K8S_POD_NAME", string(c.pod.K8S_POD_NAME)},
		{"K8S_POD_INFRA_CONTAINER_ID", string(c.pod.K8S_POD_INFRA_CONTAINER_ID)},
		{"K8S_POD_UID", string(c.pod.K8S_POD_UID)},
	} {
		if pair[1] != "" {
			rt.Args = append(rt.Args, pair)
		}
	}
	return rt
}

func main() {
	funcs := skel.CNIFuncs{Add: within(add), Check: within(check), Del: within(del)}
	skel.PluginMainFuncs(funcs, version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0"), "multinet, a double of Multus")
}

// within bounds one call.
func within(verb func(context.Context, *call) error) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		c, err := newCall(args)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), callMax)
		defer cancel()
		return verb(ctx, c)
	}
}

// wanted are the networks that the pod asks for, as the API server knows them.
func (c *call) wanted(ctx context.Context) (*api, []*delegate, error) {
	api, err := c.conf.API.connect()
	if err != nil {
		return nil, nil, err
	}
	delegates, err := c.delegates(ctx, api)
	return api, delegates, err
}

func add(ctx context.Context, c *call) error {
	api, delegates, err := c.wanted(ctx)
	if err != nil {
		return err
	}
	// Before the first delegate is called: DEL finds it whatever happens.
	if err := c.save(delegates); err != nil {
		return err
	}
	var first types.Result
	var statuses []networkStatus
	for index, d := range delegates {
		result, err := c.libcni.AddNetworkList(ctx, d.list, c.runtime(d))
		if err != nil {
			// As Multus: what was added is taken back, the one that failed included.
			undone := c.undo(ctx, delegates[:index+1])
			return errors.Join(fmt.Errorf("network %s: %w", d.Name, err), undone)
		}
		status, err := statusOf(d, result, index == 0)
		if err != nil {
			return err
		}
		statuses = append(statuses, status)
		if index == 0 {
			first = result
		}
	}
	if err := api.setStatus(ctx, c.pod, statuses); err != nil {
		return err
	}
	return types.PrintResult(first, c.conf.CNIVersion)
}

func check(ctx context.Context, c *call) error {
	_, delegates, err := c.wanted(ctx)
	if err != nil {
		return err
	}
	for _, d := range delegates {
		if err := c.libcni.CheckNetworkList(ctx, d.list, c.runtime(d)); err != nil {
			return fmt.Errorf("network %s: %w", d.Name, err)
		}
	}
	return nil
}

func del(ctx context.Context, c *call) error {
	saved, err := c.load()
	if err != nil {
		return err
	}
	if err := c.undo(ctx, saved); err != nil {
		return err
	}
	if err := os.Remove(c.file()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// undo calls DEL of every delegate, the last one first, each whatever the others say.
func (c *call) undo(ctx context.Context, delegates []*delegate) error {
	var failed []error
	for index := len(delegates) - 1; index >= 0; index-- {
		d := delegates[index]
		list, err := d.stripped()
		if err == nil && index == 0 {
			list, err = libcni.ConfListFromFile(c.conf.ClusterNetwork)
		}
		if err == nil {
			err = c.libcni.DelNetworkList(ctx, list, c.runtime(d))
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("network %s: %w", d.Name, err))
		}
	}
	return errors.Join(failed...)
}

func (c *call) file() string {
	return filepath.Join(c.conf.CacheDir, "multinet", c.args.ContainerID+".json")
}

func (c *call) save(delegates []*delegate) error {
	text, err := json.Marshal(delegates)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(c.file()), 0o700); err != nil {
		return err
	}
	return os.WriteFile(c.file(), text, 0o600)
}

// load reads what ADD saved. A sandbox that is not known has the default network at most.
func (c *call) load() ([]*delegate, error) {
	text, err := os.ReadFile(c.file())
	if errors.Is(err, os.ErrNotExist) {
		return []*delegate{{Name: "default", IfName: c.args.IfName}}, nil
	}
	if err != nil {
		return nil, err
	}
	var saved []*delegate
	err = json.Unmarshal(text, &saved)
	return saved, err
}
