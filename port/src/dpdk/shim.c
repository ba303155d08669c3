// SPDX-License-Identifier: Apache-2.0
/* What of DPDK is inline, a macro or a large structure, as plain functions for sys.rs. In: numbers and pointers that sys.rs vouches
 * for. Out: 0 or a negative Linux error number, unless said otherwise. Nothing is decided here. */

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

/* What sys.rs wants to know of a device; the same structure is there. */
struct ktsn_dpdk_info {
	uint16_t mtu;
	uint16_t descriptors;
	uint8_t mac[6];
};

int ktsn_dpdk_init(int argc, char **argv)
{
	return rte_eal_init(argc, argv) < 0 ? -rte_errno : 0;
}

/* The directory that it made for itself; it puts nothing there. */
const char *ktsn_dpdk_directory(void)
{
	return rte_eal_get_runtime_dir();
}

/* Plugs the device in, where it is not yet, and returns its port. */
int ktsn_dpdk_attach(const char *devargs, const char *name, uint16_t *port)
{
	int status = rte_dev_probe(devargs);

	if (status < 0 && status != -EEXIST)
		return status;
	return rte_eth_dev_get_port_by_name(name, port);
}

/* Gives the device back, whatever state it is in. */
void ktsn_dpdk_detach(uint16_t port)
{
	struct rte_eth_dev_info info;
	int known = rte_eth_dev_info_get(port, &info);

	(void)rte_eth_dev_stop(port);
	(void)rte_eth_dev_close(port);
	if (known == 0)
		(void)rte_dev_remove(info.device);
}

int ktsn_dpdk_info(uint16_t port, uint16_t wanted, struct ktsn_dpdk_info *out)
{
	struct rte_eth_dev_info info;
	struct rte_ether_addr mac;
	uint16_t receive = 0;
	int status = rte_eth_dev_info_get(port, &info);

	if (status == 0)
		status = rte_eth_dev_get_mtu(port, &out->mtu);
	if (status == 0)
		status = rte_eth_macaddr_get(port, &mac);
	if (status < 0)
		return status;
	memcpy(out->mac, mac.addr_bytes, sizeof(out->mac));
	out->descriptors = wanted;
	/* Before the device is configured the count of receive descriptors has no meaning. */
	(void)rte_eth_dev_adjust_nb_rx_tx_desc(port, &receive, &out->descriptors);
	return 0;
}

/* One transmit queue, and `receivers` receive queues (0 or 1) that are never read. */
int ktsn_dpdk_start(uint16_t port, uint16_t descriptors, uint16_t receivers, void *pool)
{
	struct rte_eth_conf conf;
	int status;

	memset(&conf, 0, sizeof(conf));
	status = rte_eth_dev_configure(port, receivers, 1, &conf);
	if (status == 0)
		status = rte_eth_tx_queue_setup(port, 0, descriptors, (unsigned int)rte_eth_dev_socket_id(port), NULL);
	if (status == 0 && receivers > 0)
		status = rte_eth_rx_queue_setup(port, 0, descriptors, (unsigned int)rte_eth_dev_socket_id(port), NULL, pool);
	if (status == 0)
		status = rte_eth_dev_start(port);
	return status;
}

int ktsn_dpdk_link_up(uint16_t port)
{
	struct rte_eth_link link;

	return rte_eth_link_get_nowait(port, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
}

/* NULL and *status: it can't be had. */
void *ktsn_dpdk_pool_new(const char *name, unsigned int count, uint16_t octets, int *status)
{
	uint16_t room = (uint16_t)(octets + RTE_PKTMBUF_HEADROOM);
	struct rte_mempool *pool = rte_pktmbuf_pool_create(name, count, 0, 0, room, SOCKET_ID_ANY);

	*status = pool == NULL ? -rte_errno : 0;
	return pool;
}

void ktsn_dpdk_pool_free(void *pool)
{
	rte_mempool_free(pool);
}

/* A buffer and where its octets go; NULL: all are under way. */
void *ktsn_dpdk_buffer_new(void *pool, uint8_t **octets)
{
	struct rte_mbuf *buffer = rte_pktmbuf_alloc(pool);

	if (buffer != NULL)
		*octets = rte_pktmbuf_mtod(buffer, uint8_t *);
	return buffer;
}

void ktsn_dpdk_buffer_free(void *buffer)
{
	rte_pktmbuf_free(buffer);
}

/* Sends `length` octets. 1: the device has the buffer; 0: it stays here. */
int ktsn_dpdk_send(uint16_t port, void *buffer, uint16_t length)
{
	struct rte_mbuf *frame = buffer;

	frame->data_len = length;
	frame->pkt_len = length;
	frame->ol_flags = 0;
	return rte_eth_tx_burst(port, 0, &frame, 1) == 1;
}
