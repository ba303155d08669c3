// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A socket to the tables of one namespace's kernel. Netlink's library asks for each link again after it has made or changed it; a pod waits
// for every one of these questions.
type tables struct{ socket *nl.NetlinkSocket }

func openTables(namespace netns.NsHandle) (*tables, error) {
	socket, err := nl.GetNetlinkSocketAt(namespace, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	return &tables{socket}, nil
}

func (t *tables) close() { t.socket.Close() }

func (t *tables) ask(request *nl.NetlinkRequest) error {
	request.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Seq: request.Seq, Socket: t.socket}}
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// Pair makes both ends by one message, with names, MTU and addresses, the pod's end in its namespace, the node's up.
func (t *tables) pair(spec Spec, link *Link, namespace netns.NsHandle) error {
	request := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	head := nl.NewIfInfomsg(unix.AF_UNSPEC)
	head.Flags, head.Change = unix.IFF_UP, unix.IFF_UP
	request.AddData(head)
	for _, attribute := range end(spec.Host, link.MTU, link.HostMAC) {
		request.AddData(attribute)
	}
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, []byte("veth"))
	peer := info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.VETH_INFO_PEER, nil)
	nl.NewIfInfomsgChild(peer, unix.AF_UNSPEC)
	for _, attribute := range end(spec.Interface, link.MTU, link.PodMAC) {
		peer.AddChild(attribute)
	}
	peer.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(namespace)))
	request.AddData(info)
	return t.ask(request)
}

func end(name string, mtu int, mac net.HardwareAddr) []*nl.RtAttr {
	return []*nl.RtAttr{
		nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)),
		nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(mtu))),
		nl.NewRtAttr(unix.IFLA_ADDRESS, mac),
	}
}

func (t *tables) up(name string) error {
	request := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	head := nl.NewIfInfomsg(unix.AF_UNSPEC)
	head.Flags, head.Change = unix.IFF_UP, unix.IFF_UP
	request.AddData(head)
	request.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	return t.ask(request)
}

// Number of a link; an error that is ENODEV where there is none.
func (t *tables) number(name string) (int, error) {
	request, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(t.socket.GetFd(), unix.SIOCGIFINDEX, request)
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return int(request.Uint32()), nil
}

func (t *tables) has(name string) bool {
	_, err := t.number(name)
	return err == nil
}

// MTUOf a device of the node; 0 where there is none.
func MTUOf(device string) int {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) // any socket carries the question
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq(device)
	if err != nil || unix.IoctlIfreq(fd, unix.SIOCGIFMTU, request) != nil {
		return 0
	}
	return int(request.Uint32())
}
