// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// kubelet does what the real one does with its plugins: it empties the folder when it starts, takes registrations, and
// reads the list of devices from the plugin's socket.
type kubelet struct {
	api.UnimplementedRegistrationServer
	folder string
	server *grpc.Server

	mutex      sync.Mutex
	refuse     error
	registered []*api.RegisterRequest
	lists      chan []*api.Device
	plugin     api.DevicePluginClient
	cancel     context.CancelFunc
}

func startKubelet(t *testing.T, folder string) *kubelet {
	t.Helper()
	k := &kubelet{folder: folder, lists: make(chan []*api.Device, 64)}
	k.start(t)
	t.Cleanup(k.stop)
	return k
}

func (k *kubelet) start(t *testing.T) {
	t.Helper()
	sockets, _ := filepath.Glob(filepath.Join(k.folder, "*"))
	for _, socket := range sockets {
		_ = os.Remove(socket)
	}
	listener, err := net.Listen("unix", filepath.Join(k.folder, kubeletSocket))
	if err != nil {
		t.Fatal(err)
	}
	k.server = grpc.NewServer()
	api.RegisterRegistrationServer(k.server, k)
	go func() { _ = k.server.Serve(listener) }()
}

func (k *kubelet) stop() {
	k.mutex.Lock()
	if k.cancel != nil {
		k.cancel()
	}
	k.mutex.Unlock()
	k.server.Stop()
}

func (k *kubelet) Register(_ context.Context, request *api.RegisterRequest) (*api.Empty, error) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if k.refuse != nil {
		return nil, k.refuse
	}
	k.registered = append(k.registered, request)
	connection, err := grpc.NewClient("unix:"+filepath.Join(k.folder, request.Endpoint),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	k.cancel = func() { cancel(); _ = connection.Close() }
	k.plugin = api.NewDevicePluginClient(connection)
	go func() {
		stream, err := k.plugin.ListAndWatch(ctx, &api.Empty{})
		for err == nil {
			var answer *api.ListAndWatchResponse
			if answer, err = stream.Recv(); err == nil {
				k.lists <- answer.Devices
			}
		}
	}()
	return &api.Empty{}, nil
}

func (k *kubelet) count() int {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	return len(k.registered)
}

// wantDevices waits for a list of so many devices with one health.
func (k *kubelet) wantDevices(t *testing.T, count int, health string) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case list := <-k.lists:
			if len(list) == count && (count == 0 || list[0].Health == health && list[count-1].Health == health) {
				return
			}
		case <-deadline:
			t.Fatalf("the kubelet never heard of %d devices that are %s", count, health)
		}
	}
}

// library is a folder that is there, or an error.
type library struct {
	mutex sync.Mutex
	err   error
	asked [][]string
}

func (l *library) Hand(devices []string) (string, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.asked = append(l.asked, devices)
	return "/var/lib/ktsn/lib/1.0.0", l.err
}

func startPlugin(t *testing.T, folder string, change func(*Config)) (*Plugin, *library) {
	t.Helper()
	before := retryEvery
	retryEvery = 20 * time.Millisecond
	config := Config{
		Folder: folder, Resource: "ktsn.io/tsn", ClientDir: "/run/ktsn/client", Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&config)
	}
	lib := &library{}
	plugin := New(config, lib)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- plugin.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Error("Run does not end")
		}
		retryEvery = before
	})
	return plugin, lib
}

// folderFor makes a short path: a Unix socket's may have 107 octets.
func folderFor(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "dp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	return folder
}

var errRefused = errors.New("unsupported version")
