// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"ktsn.io/ktsn/k8s/internal/cnistate"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/nodefile"
)

// What tests do to a world behind the plugin's back.

func (w *world) detach(name string) {
	w.t.Helper()
	if _, err := w.api().Detach(within(w.t, 10*time.Second), &nodeapi.DetachRequest{Name: name}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) unfinished(container, ifName string) {
	w.t.Helper()
	directory := cnistate.Open(w.stateDir)
	state, err := directory.Load(container, ifName)
	if err != nil {
		w.t.Fatal(err)
	}
	state.Done = false
	if err := directory.Save(state); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) spoil(container, ifName string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.stateDir, container, ifName+".json"), []byte("{\"format"), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) writeNode(fields map[string]any) {
	w.t.Helper()
	content, err := json.Marshal(fields)
	if err == nil {
		err = os.WriteFile(filepath.Join(w.runDir, nodefile.Name), content, 0o644)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// Reach sends one datagram, with the kernel alone.
func reach(t *testing.T, from, to, address string) {
	t.Helper()
	fail := func(err error) {
		if err != nil {
			t.Errorf("%s from %s: %v", address, from, err)
		}
	}
	var listener net.PacketConn
	in(t, to, func() {
		var err error
		listener, err = net.ListenPacket("udp", "[::]:0")
		fail(err)
	})
	if listener == nil {
		return
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.LocalAddr().String())
	in(t, from, func() {
		talker, err := net.Dial("udp", net.JoinHostPort(address, port))
		fail(err)
		if err == nil {
			_, err = talker.Write([]byte("KTSN"))
			fail(err)
			talker.Close()
		}
	})
	listener.SetReadDeadline(time.Now().Add(20 * time.Second))
	buffer := make([]byte, 16)
	_, _, err := listener.ReadFrom(buffer)
	fail(err)
}

func (w *world) writePolicies(content string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.runDir, "policies.json"), []byte(content), 0o644); err != nil {
		w.t.Fatal(err)
	}
}
