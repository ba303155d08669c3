// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	kubeletSocket = "kubelet.sock"
	// registerMax is how long one registration may take; the kubelet calls back within it.
	registerMax = 5 * time.Second
	// lookEvery bounds how long a lost notification can go unseen.
	lookEvery = 5 * time.Second
)

// retryEvery is the pause after a failed try; the kubelet may be on its way up.
var retryEvery = time.Second

// Run serves and registers until the context ends. The kubelet forgets its plugins and empties the folder when it
// starts; so a new kubelet.sock, or the loss of our own socket, begins all over.
//
//	kubelet.sock there ─► serve ─► Register ─► (kubelet: ListAndWatch, Allocate …)
//	     ▲                                            │
//	     └── kubelet.sock is new, or ours is gone ◄───┘
func (p *Plugin) Run(ctx context.Context) error {
	for {
		err := p.runOnce(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			p.setRegistered(err)
			p.config.Log.Warn("device plugin", "error", err)
			if !sleep(ctx, retryEvery) {
				return nil
			}
		}
	}
}

// runOnce serves one life of the kubelet. It returns nil when the plugin has to register again.
func (p *Plugin) runOnce(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch for the kubelet: %w", err)
	}
	defer watcher.Close()
	if err := watcher.Add(p.config.Folder); err != nil {
		return fmt.Errorf("%s: %w: is the kubelet running, and is this directory mounted into the agent?",
			p.config.Folder, err)
	}
	kubelet, err := os.Stat(filepath.Join(p.config.Folder, kubeletSocket))
	if err != nil {
		return fmt.Errorf("the kubelet's socket is not there: %w: is the kubelet running?", err)
	}
	server, err := p.serve()
	if err != nil {
		return err
	}
	// Stop would end calls in the middle; GracefulStop would wait for ListAndWatch, which has no end.
	defer server.Stop()
	if err := p.register(ctx); err != nil {
		return err
	}
	p.setRegistered(nil)
	p.config.Log.Info("registered with the kubelet", "resource", p.config.Resource)
	return p.untilGone(ctx, watcher, kubelet)
}

// untilGone waits until the kubelet's socket is another one, or ours is not there any more.
func (p *Plugin) untilGone(ctx context.Context, watcher *fsnotify.Watcher, kubelet fs.FileInfo) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, open := <-watcher.Events:
			if !open {
				return errors.New("the watch for the kubelet ended")
			}
			if name := filepath.Base(event.Name); name != kubeletSocket && name != p.endpoint() {
				continue
			}
		case err := <-watcher.Errors:
			p.config.Log.Warn("watch for the kubelet", "error", err)
		case <-ticker.C:
		}
		now, err := os.Stat(filepath.Join(p.config.Folder, kubeletSocket))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			// Its socket is gone: it is restarting. What it does to our socket shows when it is back.
			return errors.New("the kubelet has gone")
		case err == nil && !sameSocket(now, kubelet):
			p.config.Log.Info("the kubelet was restarted")
			return nil
		}
		if _, err := os.Lstat(p.socket()); errors.Is(err, fs.ErrNotExist) {
			p.config.Log.Info("our socket was removed: the kubelet was restarted")
			return nil
		}
	}
}

// sameSocket compares more than the inode, which a file system reuses at once.
func sameSocket(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime())
}

func (p *Plugin) endpoint() string { return strings.ReplaceAll(p.config.Resource, "/", "-") + ".sock" }

func (p *Plugin) socket() string { return filepath.Join(p.config.Folder, p.endpoint()) }

// serve listens at our socket. One that an earlier life left is removed: the folder is root's.
func (p *Plugin) serve() (*grpc.Server, error) {
	path := p.socket()
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("device plugin socket: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("device plugin socket: %w", err)
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, p)
	go func() {
		if err := server.Serve(listener); err != nil {
			p.config.Log.Warn("device plugin socket", "error", err)
		}
	}()
	return server, nil
}

func (p *Plugin) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, registerMax)
	defer cancel()
	target := "unix:" + filepath.Join(p.config.Folder, kubeletSocket)
	connection, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("register with the kubelet: %w", err)
	}
	defer connection.Close()
	_, err = api.NewRegistrationClient(connection).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: p.endpoint(), ResourceName: p.config.Resource,
		Options: &api.DevicePluginOptions{},
	})
	if err != nil {
		return fmt.Errorf("register with the kubelet: %w", err)
	}
	return nil
}

// sleep waits; false when the context ended.
func sleep(ctx context.Context, span time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(span):
		return true
	}
}
