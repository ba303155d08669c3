// SPDX-License-Identifier: Apache-2.0

// Package deviceplugin offers the node's TSN slots to the kubelet (device plugin API v1beta1).
//
// In: how many slots there are and whether they can be used now; the kubelet's calls. Out: a registered plugin, its
// list of devices, and for each container the mounts that make a program find ktsnd. A device only counts: which pod
// has which is not needed to attach. It must never answer Allocate with paths that do not exist, and must come back
// by itself whenever the kubelet was restarted.
package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Where a container finds what Allocate mounts. Programs and images may rely on these names.
const (
	// ContainerClientDir holds ktsnd's client socket. A directory, not the socket: a restarted ktsnd makes a new one.
	ContainerClientDir = "/run/ktsn/client"
	// ContainerLibrary is libktsn.so.
	ContainerLibrary = "/usr/lib/ktsn/libktsn.so"
	// ContainerPreload is the file that makes glibc load it.
	ContainerPreload = "/etc/ld.so.preload"
	// DevicesMax bounds the list: the kubelet holds all of it in memory, and so do we.
	DevicesMax = 4096
)

// Libraries hands out the installed libktsn.so.
type Libraries interface {
	// Hand names the folder that holds libktsn.so and ld.so.preload of the current version, and remembers that
	// these devices use it from now on.
	Hand(devices []string) (folder string, err error)
}

// Config says what the plugin offers and where.
type Config struct {
	// Folder of the kubelet's sockets, usually /var/lib/kubelet/device-plugins.
	Folder string
	// Resource is the extended resource's name, ktsn.io/tsn.
	Resource string
	// ClientDir is the directory of ktsnd's client socket on the node.
	ClientDir string
	// ClientPolicy is KTSN_POLICY of containers; empty leaves it to the program.
	ClientPolicy string
	// ClientReceive is KTSN_RECEIVE of containers; empty leaves it to the program.
	ClientReceive string
	// CDIDir is where a CDI specification is written; empty: mounts are named to the kubelet, without CDI.
	CDIDir string
	Log    *slog.Logger
}

// Plugin is the server that the kubelet talks to.
type Plugin struct {
	api.UnimplementedDevicePluginServer
	config    Config
	libraries Libraries

	mutex   sync.Mutex
	count   int
	healthy bool
	changed chan struct{} // closed and replaced at each change

	registered bool
	lastError  error
}

// New makes a plugin with no devices yet.
func New(config Config, libraries Libraries) *Plugin {
	if config.Log == nil {
		config.Log = slog.Default()
	}
	return &Plugin{
		config: config, libraries: libraries, changed: make(chan struct{}),
		lastError: errors.New("the device plugin has not registered with the kubelet yet"),
	}
}

// SetDevices says how many slots there are, and whether they work now. Slots that do not work stay in the list as
// unhealthy, so that the kubelet keeps what it knows of the pods that have them.
func (p *Plugin) SetDevices(count int, healthy bool) {
	count = min(max(count, 0), DevicesMax)
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.count == count && p.healthy == healthy {
		return
	}
	p.config.Log.Info("devices", "resource", p.config.Resource, "count", count, "healthy", healthy)
	p.count, p.healthy = count, healthy
	close(p.changed)
	p.changed = make(chan struct{})
}

// Registered returns nil when the kubelet knows the plugin, else the reason.
func (p *Plugin) Registered() error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.registered {
		return nil
	}
	return p.lastError
}

func (p *Plugin) setRegistered(err error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.registered, p.lastError = err == nil, err
}

// deviceName is the name of a slot.
func deviceName(index int) string { return fmt.Sprintf("tsn-%d", index) }

// devices is the list of this moment, and the channel that closes when it is not true any more.
func (p *Plugin) devices() ([]*api.Device, <-chan struct{}) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	health := api.Unhealthy
	if p.healthy {
		health = api.Healthy
	}
	list := make([]*api.Device, p.count)
	for index := range list {
		list[index] = &api.Device{ID: deviceName(index), Health: health}
	}
	return list, p.changed
}

// GetDevicePluginOptions says that the kubelet need not call anything beyond Allocate.
func (p *Plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

// ListAndWatch sends the devices now and after each change, until the kubelet goes.
func (p *Plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	for {
		list, changed := p.devices()
		if err := stream.Send(&api.ListAndWatchResponse{Devices: list}); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// Allocate says what a container with these slots needs: the client socket's directory, the library, and the file
// that preloads it. Everything is read-only: a pod can change neither.
func (p *Plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	known, _ := p.devices()
	answer := &api.AllocateResponse{}
	for _, container := range request.GetContainerRequests() {
		ids := container.GetDevicesIds()
		if len(ids) == 0 {
			return nil, status.Error(codes.InvalidArgument, "a container request without devices")
		}
		for _, id := range ids {
			if !slices.ContainsFunc(known, func(d *api.Device) bool { return d.ID == id }) {
				return nil, status.Errorf(codes.NotFound,
					"%s: no such device of %s; this node offers %d", id, p.config.Resource, len(known))
			}
		}
		folder, err := p.libraries.Hand(ids)
		if err != nil {
			return nil, status.Errorf(codes.FailedPrecondition, "libktsn.so: %v", err)
		}
		p.config.Log.Info("allocate", "devices", ids, "library", folder)
		answer.ContainerResponses = append(answer.ContainerResponses, p.containerAnswer(ids, folder))
	}
	return answer, nil
}

func (p *Plugin) containerAnswer(ids []string, folder string) *api.ContainerAllocateResponse {
	if p.config.CDIDir != "" {
		answer := &api.ContainerAllocateResponse{}
		for _, id := range ids {
			answer.CdiDevices = append(answer.CdiDevices, &api.CDIDevice{Name: p.config.Resource + "=" + id})
		}
		return answer
	}
	answer := &api.ContainerAllocateResponse{Envs: p.environment()}
	for _, mount := range mountsOf(p.config.ClientDir, folder) {
		answer.Mounts = append(answer.Mounts, &api.Mount{
			HostPath: mount.host, ContainerPath: mount.container, ReadOnly: true,
		})
	}
	return answer
}

// environment of containers. The kubelet lets a pod's own variables win over it.
func (p *Plugin) environment() map[string]string {
	variables := map[string]string{}
	for name, value := range map[string]string{"KTSN_POLICY": p.config.ClientPolicy, "KTSN_RECEIVE": p.config.ClientReceive} {
		if value != "" {
			variables[name] = value
		}
	}
	return variables
}

type mount struct{ host, container string }

// mountsOf lists the mounts of a container, for the kubelet and for CDI alike.
func mountsOf(clientDir, folder string) []mount {
	return []mount{
		{clientDir, ContainerClientDir},
		{folder + "/libktsn.so", ContainerLibrary},
		{folder + "/ld.so.preload", ContainerPreload},
	}
}
