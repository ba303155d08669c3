// SPDX-License-Identifier: BSD-2-Clause
// lwIP for the guest: IPv4, TCP and UDP, the netconn interface, core locking.
#ifndef LWIPOPTS_H
#define LWIPOPTS_H

// Octets of TCP's send buffer and of its receive window; the machine's user sets them (settings.c). lwIP's own checks
// see 0 here: the preprocessor knows no variables.
extern unsigned guest_tcp_octets;
#define TCP_WND (guest_tcp_octets == 0 ? 65535 : guest_tcp_octets)
#define TCP_SND_BUF TCP_WND
#define TCP_SND_QUEUELEN 512
#define LWIP_DISABLE_TCP_SANITY_CHECKS 1
#define LWIP_WND_SCALE 1
#define TCP_RCV_SCALE 2
#define TCP_MSS 1448 // the paper's messages fill a segment
#define TCP_OVERSIZE TCP_MSS
#define LWIP_TCP_SACK_OUT 0

#define NO_SYS 0
#define SYS_LIGHTWEIGHT_PROT 1
#define LWIP_COMPAT_MUTEX 0
#define LWIP_TCPIP_CORE_LOCKING 1
#define LWIP_TCPIP_CORE_LOCKING_INPUT 1
#define LWIP_SUPPORT_CUSTOM_PBUF 1
#define LWIP_NETCONN 1
#define LWIP_SOCKET 0
#define LWIP_STATS 0
#define LWIP_IPV4 1
#define LWIP_IPV6 0
#define LWIP_ICMP 1
#define LWIP_DHCP 0
#define LWIP_DNS 0
#define LWIP_CHKSUM_ALGORITHM 3

#define ETH_PAD_SIZE 2 // the IP header and TCP's data are aligned
#define MEM_ALIGNMENT 8
#define MEM_SIZE (512 * 1024)
#define MEMP_NUM_TCP_SEG 512
#define MEMP_NUM_PBUF 256
#define MEMP_NUM_TCP_PCB 8
#define MEMP_NUM_NETCONN 12
#define MEMP_NUM_TCPIP_MSG_API 8
#define MEMP_NUM_TCPIP_MSG_INPKT 8
#define PBUF_POOL_SIZE 160
#define PBUF_POOL_BUFSIZE 1536

#define TCPIP_MBOX_SIZE 64
// The driver's bottom half is above lwIP's thread. RTEMS counts priorities downwards.
#ifdef __rtems__
#define GUEST_PRIORITY_DRIVER 2
#define TCPIP_THREAD_PRIO 3
#define GUEST_PRIORITY_SERVICE 10
#define GUEST_PRIORITY_SENDER 20
#else
#define GUEST_PRIORITY_DRIVER 6
#define TCPIP_THREAD_PRIO 5
#define GUEST_PRIORITY_SERVICE 3
#define GUEST_PRIORITY_SENDER 2
#define GUEST_PRIORITY_START 1
#endif
#define TCPIP_THREAD_STACKSIZE 8192 // octets
#define DEFAULT_TCP_RECVMBOX_SIZE 256
#define DEFAULT_ACCEPTMBOX_SIZE 8
#define DEFAULT_THREAD_STACKSIZE 8192
#define LWIP_NETIF_TX_SINGLE_PBUF 1
#define LWIP_DONT_PROVIDE_BYTEORDER_FUNCTIONS 1

#endif
