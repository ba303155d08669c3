// SPDX-License-Identifier: Apache-2.0

package podwatch

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"

	"ktsn.io/ktsn/k8s/internal/nodeapi"
)

// kubelet answers with the pods it holds.
type kubelet struct {
	api.UnimplementedPodResourcesListerServer
	pods []*api.PodResources
}

func (k kubelet) List(context.Context, *api.ListPodResourcesRequest) (*api.ListPodResourcesResponse, error) {
	return &api.ListPodResourcesResponse{PodResources: k.pods}, nil
}

func TestHolders(t *testing.T) {
	folder, err := os.MkdirTemp("", "pr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	socket := filepath.Join(folder, "kubelet.sock")
	if _, err := Holders(context.Background(), socket, "ktsn.io/tsn"); err == nil || !strings.Contains(err.Error(), "is the kubelet running") {
		t.Errorf("no kubelet: %v", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	device := func(resource string, ids ...string) *api.ContainerDevices {
		return &api.ContainerDevices{ResourceName: resource, DeviceIds: ids}
	}
	api.RegisterPodResourcesListerServer(server, kubelet{pods: []*api.PodResources{
		{Namespace: "a", Name: "talker", Containers: []*api.ContainerResources{
			{Name: "main", Devices: []*api.ContainerDevices{device("ktsn.io/tsn", "tsn-4"), device("x.io/gpu", "7"), device("ktsn.io/tsn", "tsn-1")}},
			{Name: "side"},
		}},
		{Namespace: "b", Name: "other", Containers: []*api.ContainerResources{{Name: "main", Devices: []*api.ContainerDevices{device("x.io/gpu", "8")}}}},
	}})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	holders, err := Holders(context.Background(), socket, "ktsn.io/tsn")
	want := []Holder{{"a", "talker", "main", []string{"tsn-1", "tsn-4"}}}
	if err != nil || !reflect.DeepEqual(holders, want) {
		t.Errorf("%v, %v", holders, err)
	}
}

func state(name string, clients int) *nodeapi.AttachmentState {
	return &nodeapi.AttachmentState{Name: name, Clients: make([]*nodeapi.Client, clients)}
}

func TestFind(t *testing.T) {
	holder := func(pod string) Holder { return Holder{"a", pod, "main", []string{"tsn-0"}} }
	list := &nodeapi.ListReply{Attachments: []*nodeapi.AttachmentState{
		state("c1/net1", 0), state("c2/net1", 1), state("c3/net1", 0), state("c4/net1", 0), state("c4/net2", 2),
	}}
	interfaces := []Interface{
		{"a", "silent", "c1/net1", "preload"}, {"a", "talks", "c2/net1", "preload"}, {"a", "captured", "c3/net1", "kernel"},
		{"a", "second interface", "c4/net1", ""}, {"a", "second interface", "c4/net2", ""},
		{"a", "lost", "c9/net1", "preload"}, {"a", "lost capture", "c8/net1", "kernel"}, {"b", "no network", "c2/net1", ""},
	}
	want := map[string]string{
		"silent": ReasonNotLoaded, "no network": ReasonNoNetwork, "lost": ReasonNotAttached, "lost capture": ReasonNotAttached,
	}
	var holders []Holder
	for _, pod := range []string{"silent", "talks", "captured", "second interface", "lost", "lost capture", "no network"} {
		holders = append(holders, holder(pod))
	}
	found := map[string]string{}
	for _, finding := range Find(holders, interfaces, list) {
		found[finding.Pod] = finding.Reason
		if !strings.Contains(finding.Message, "container main") {
			t.Errorf("%s: %s", finding.Pod, finding.Message)
		}
	}
	if !reflect.DeepEqual(found, want) {
		t.Errorf("%v", found)
	}
}

func TestAPodOnTheHostsNetworkIsToldSo(t *testing.T) {
	none := Finding{Holder{"a", "hosted", "main", nil}, ReasonNoNetwork, "x"}
	if told := none.OnTheHost(); told.Reason != ReasonOnTheHost || !strings.Contains(told.Message, "container main has a slot of ktsn.io/tsn, but its pod is on the host's network") {
		t.Errorf("%+v", told)
	}
	silent := Finding{Holder{"a", "hosted", "main", nil}, ReasonNotLoaded, "x"}
	if told := silent.OnTheHost(); !reflect.DeepEqual(told, silent) {
		t.Errorf("%+v", told)
	}
}

func TestOnlyWhatLastsIsToldAndOnce(t *testing.T) {
	patience := NewPatience(time.Minute)
	finding := []Finding{{Holder{"a", "talker", "main", nil}, ReasonNotLoaded, "x"}}
	begin := time.Unix(1000, 0)
	for _, step := range []struct {
		after         time.Duration
		findings      []Finding
		lasting, news int
	}{
		{0, finding, 0, 0}, {59 * time.Second, finding, 0, 0}, {60 * time.Second, finding, 1, 1}, {90 * time.Second, finding, 1, 0},
		{100 * time.Second, nil, 0, 0}, {110 * time.Second, finding, 0, 0}, {170 * time.Second, finding, 1, 1},
	} {
		lasting, news := patience.Lasting(begin.Add(step.after), step.findings)
		if len(lasting) != step.lasting || len(news) != step.news {
			t.Errorf("after %s: %d lasting, %d news", step.after, len(lasting), len(news))
		}
	}
}
