// SPDX-License-Identifier: Apache-2.0

package overlaynet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"ktsn.io/ktsn/k8s/internal/forwardrules"
)

// Config of this node's part of the network.
type Config struct {
	// Device is the VXLAN device's name, ktsn.1.
	Device string
	VNI    int
	Port   int
	// MTU of the device; 0 = the uplink's less the tunnel's headers.
	MTU int
}

// Octets of the tunnel's headers in front of an inner packet: outer IP 20 or 40, UDP 8, VXLAN 8, inner MAC header 14.
const (
	overheadIPv4 = 50
	overheadIPv6 = 70
)

// Own is this node's part.
type Own struct {
	MAC      net.HardwareAddr
	Uplink   Uplink
	Prefixes []netip.Prefix
}

// Uplink is the device that the tunnel goes by, with this node's address on it.
type Uplink struct {
	Name    string
	Index   int
	MTU     int
	Address netip.Addr
}

// Network makes the kernel of one network namespace say what the members want.
type Network struct {
	config Config
	handle *netlink.Handle
	// sysctl writes one value below /proc/sys/net.
	sysctl func(name, value string) error
	// filter lets the network through a node that forwards nothing by default; nil: the namespace is not the node's.
	filter func(context.Context) error
	// filteredAt is when it was last asked: it starts programs, and other people change rules seldom.
	filteredAt time.Time
}

// filterPause is how long the node's packet filter is taken to be as it was.
const filterPause = 10 * time.Second

// New works in the network namespace of the process.
func New(config Config) (*Network, error) {
	handle, err := netlink.NewHandle(syscall.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	filter := forwardrules.New(config.Device).Ensure
	return &Network{config: config, handle: handle, sysctl: writeSysctl, filter: filter}, nil
}

// NewAt works in another namespace, where `sysctl` writes one value below /proc/sys/net.
func NewAt(config Config, namespace netns.NsHandle, sysctl func(name, value string) error) (*Network, error) {
	handle, err := netlink.NewHandleAt(namespace, syscall.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	return &Network{config: config, handle: handle, sysctl: sysctl}, nil
}

// Close gives the netlink sockets back.
func (n *Network) Close() { n.handle.Close() }

func writeSysctl(name, value string) error {
	path := "/proc/sys/net/" + name
	if old, err := os.ReadFile(path); err == nil && len(old) > 0 && string(old[:len(old)-1]) == value {
		return nil // also where /proc/sys is read-only
	}
	return os.WriteFile(path, []byte(value), 0o644)
}

// FindUplink finds the device of a node: the one named, else the one with the node's address. With a device named, the
// node's address counts if it is there, else the device's first global address of that family, then of any.
func (n *Network) FindUplink(name string, node netip.Addr) (Uplink, error) {
	links, err := n.handle.LinkList()
	if err != nil {
		return Uplink{}, fmt.Errorf("links: %w", err)
	}
	for _, link := range links {
		attributes := link.Attrs()
		if name != "" && attributes.Name != name {
			continue
		}
		addresses, err := n.globalAddresses(link)
		if err != nil {
			return Uplink{}, err
		}
		uplink := Uplink{Name: attributes.Name, Index: attributes.Index, MTU: attributes.MTU}
		for _, address := range addresses {
			if address == node {
				uplink.Address = address
				return uplink, nil
			}
		}
		if name == "" {
			continue
		}
		for _, address := range addresses {
			if !uplink.Address.IsValid() || uplink.Address.Is4() != node.Is4() && address.Is4() == node.Is4() {
				uplink.Address = address
			}
		}
		if !uplink.Address.IsValid() {
			return Uplink{}, fmt.Errorf("--uplink %s: it has no global address", name)
		}
		return uplink, nil
	}
	if name != "" {
		return Uplink{}, fmt.Errorf("--uplink %s: no such device on this node", name)
	}
	return Uplink{}, fmt.Errorf("no device has the node's address %s: name the device with --uplink", node)
}

func (n *Network) globalAddresses(link netlink.Link) ([]netip.Addr, error) {
	list, err := n.handle.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("addresses of %s: %w", link.Attrs().Name, err)
	}
	var addresses []netip.Addr
	for _, entry := range list {
		address, ok := netip.AddrFromSlice(entry.IP)
		if address = address.Unmap(); ok && usableAddress(address) {
			addresses = append(addresses, address)
		}
	}
	return addresses, nil
}

// mtuFor is the device's MTU on an uplink.
func (n *Network) mtuFor(uplink Uplink) int {
	if n.config.MTU > 0 {
		return n.config.MTU
	}
	if uplink.Address.Is4() {
		return uplink.MTU - overheadIPv4
	}
	return uplink.MTU - overheadIPv6
}

// Reconcile makes device, addresses and tables what they have to be, and says what it changed. What is right already is
// left alone, so that calling it again changes nothing. The order keeps traffic going: a new member's route comes after what
// the route needs, an old one's goes first.
func (n *Network) Reconcile(own Own, others []Member) (VTEP, []string, error) {
	var changes []string
	link, err := n.device(own, &changes)
	if err != nil {
		return VTEP{}, changes, err
	}
	vtep := VTEP{
		Address: own.Uplink.Address.String(), MAC: own.MAC.String(), VNI: n.config.VNI, Port: n.config.Port,
		MTU: n.mtuFor(own.Uplink), Prefixes: Texts(own.Prefixes),
	}
	tables := wanted(link.Attrs().Index, own, others)
	err = errors.Join(
		n.addresses(link, own.Prefixes, &changes),
		n.removeRoutes(tables, &changes),
		n.neighbours(tables, &changes),
		n.addRoutes(tables, &changes),
		n.forwarding(),
	)
	return vtep, changes, err
}

// device makes the VXLAN device, and replaces a device with other attributes.
func (n *Network) device(own Own, changes *[]string) (netlink.Link, error) {
	name := n.config.Device
	want := &netlink.Vxlan{
		LinkAttrs: netlink.LinkAttrs{Name: name, MTU: n.mtuFor(own.Uplink), HardwareAddr: own.MAC},
		VxlanId:   n.config.VNI, VtepDevIndex: own.Uplink.Index, SrcAddr: own.Uplink.Address.AsSlice(),
		Port: n.config.Port, UDPCSum: true,
	}
	have, err := n.handle.LinkByName(name)
	var missing netlink.LinkNotFoundError
	switch {
	case errors.As(err, &missing):
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	default:
		vxlan, ok := have.(*netlink.Vxlan)
		if !ok {
			return nil, fmt.Errorf("%s is there and is no VXLAN device but %s: remove it, or name another with --vxlan-device",
				name, have.Type())
		}
		if why := differs(vxlan, want); why != "" {
			if vxlan.HardwareAddr.String() != own.MAC.String() {
				return nil, fmt.Errorf("%s is there with another %s and is not ours (MAC address %s, ours would be %s): remove it, or name "+
					"another device with --vxlan-device", name, why, vxlan.HardwareAddr, own.MAC)
			}
			*changes = append(*changes, fmt.Sprintf("removed %s, which had another %s", name, why))
			if err := n.handle.LinkDel(vxlan); err != nil {
				return nil, fmt.Errorf("%s has another %s and cannot be removed: %w", name, why, err)
			}
			have = nil
		}
	}
	if have == nil {
		if have, err = n.create(want); err != nil {
			return nil, err
		}
		*changes = append(*changes, "made "+name)
	}
	return have, n.settle(have, want, changes)
}

func (n *Network) create(want *netlink.Vxlan) (netlink.Link, error) {
	if err := n.handle.LinkAdd(want); err != nil {
		if errors.Is(err, syscall.EEXIST) {
			return nil, fmt.Errorf("%s: another device of this node has VNI %d on UDP port %d: set --vxlan-vni or --vxlan-port: %w",
				want.Name, want.VxlanId, want.Port, err)
		}
		return nil, fmt.Errorf("make %s: %w", want.Name, err)
	}
	return n.handle.LinkByName(want.Name)
}

// differs names the parameter that cannot be changed while the device lives.
func differs(have, want *netlink.Vxlan) string {
	for _, parameter := range []struct {
		name string
		same bool
	}{
		{"VNI", have.VxlanId == want.VxlanId},
		{"local address", have.SrcAddr.Equal(want.SrcAddr)},
		{"port", have.Port == want.Port},
		{"uplink", have.VtepDevIndex == want.VtepDevIndex},
		{"learning", !have.Learning},
		{"group", len(have.Group) == 0 || have.Group.IsUnspecified()},
		{"header format (gbp)", !have.GBP},
		{"mode (external)", !have.FlowBased},
	} {
		if !parameter.same {
			return parameter.name
		}
	}
	return ""
}

// settle sets what can be changed in place.
func (n *Network) settle(have netlink.Link, want *netlink.Vxlan, changes *[]string) error {
	attributes := have.Attrs()
	name := attributes.Name
	if attributes.HardwareAddr.String() != want.HardwareAddr.String() {
		if err := n.handle.LinkSetHardwareAddr(have, want.HardwareAddr); err != nil {
			return fmt.Errorf("%s: MAC address: %w", name, err)
		}
		*changes = append(*changes, fmt.Sprintf("%s: MAC address %s", name, want.HardwareAddr))
	}
	if attributes.MTU != want.MTU {
		if err := n.handle.LinkSetMTU(have, want.MTU); err != nil {
			return fmt.Errorf("%s: MTU %d: %w", name, want.MTU, err)
		}
		*changes = append(*changes, fmt.Sprintf("%s: MTU %d", name, want.MTU))
	}
	if attributes.Flags&net.FlagUp == 0 {
		if err := n.handle.LinkSetUp(have); err != nil {
			return fmt.Errorf("%s: up: %w", name, err)
		}
		*changes = append(*changes, name+": up")
	}
	return nil
}

// forwarding lets packets for pods that come in by the device go on to their interfaces. Where the node forwards anyway
// nothing is written: a container's /proc/sys is often read-only.
func (n *Network) forwarding() error {
	if err := n.sysctl("ipv4/conf/"+n.config.Device+"/forwarding", "1"); err != nil {
		return fmt.Errorf("%s: packets are not forwarded to pods: %w: set net.ipv4.ip_forward=1 on the node", n.config.Device, err)
	}
	if n.filter == nil || time.Since(n.filteredAt) < filterPause {
		return nil
	}
	if err := n.filter(context.Background()); err != nil {
		return fmt.Errorf("%s: the node's packet filter drops forwarded packets, and no rule can be added: %w", n.config.Device, err)
	}
	n.filteredAt = time.Now()
	return nil
}
