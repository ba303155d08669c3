// SPDX-License-Identifier: Apache-2.0

// An ordinary Go program that sends with SO_TXTIME by raw system calls, so nothing preloaded ever sees it:
// capture_talker DEST PORT [KEY=VALUE…]; keys and output are those of faults_talker (sender, clock, count, period_us, lead_us,
// octets), and gso=N: N datagrams in one UDP_SEGMENT send.
package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

const (
	soTxTime   = 61
	solUDP     = 17
	udpSegment = 103
)

type txTime struct {
	clock int32
	flags uint32
}

func value(name string, otherwise int64) int64 {
	for _, key := range os.Args[3:] {
		if rest, found := strings.CutPrefix(key, name+"="); found {
			number, err := strconv.ParseInt(rest, 10, 64)
			if err != nil {
				fail(err)
			}
			return number
		}
	}
	return otherwise
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(2)
}

func now(clock int64) int64 {
	var at syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, uintptr(clock), uintptr(unsafe.Pointer(&at)), 0)
	return at.Nano()
}

func destination() (int, syscall.Sockaddr) {
	address := net.ParseIP(os.Args[1])
	port, err := strconv.Atoi(os.Args[2])
	if err != nil || address == nil {
		fail(fmt.Errorf("no address or port: %v", os.Args[1:3]))
	}
	if four := address.To4(); four != nil {
		return syscall.AF_INET, &syscall.SockaddrInet4{Port: port, Addr: [4]byte(four)}
	}
	return syscall.AF_INET6, &syscall.SockaddrInet6{Port: port, Addr: [16]byte(address)}
}

func control(kind, level int, data []byte) []byte {
	message := make([]byte, syscall.CmsgSpace(len(data)))
	header := (*syscall.Cmsghdr)(unsafe.Pointer(&message[0]))
	header.Level, header.Type = int32(level), int32(kind)
	header.SetLen(syscall.CmsgLen(len(data)))
	copy(message[syscall.CmsgLen(0):], data)
	return message
}

func main() {
	if len(os.Args) < 3 {
		fail(fmt.Errorf("usage: capture_talker DEST PORT [KEY=VALUE…]"))
	}
	family, to := destination()
	clock := value("clock", 11)
	socket, err := syscall.Socket(family, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		fail(err)
	}
	asked := txTime{clock: int32(clock)}
	if _, _, errno := syscall.Syscall6(syscall.SYS_SETSOCKOPT, uintptr(socket), syscall.SOL_SOCKET, soTxTime,
		uintptr(unsafe.Pointer(&asked)), unsafe.Sizeof(asked), 0); errno != 0 {
		fail(errno)
	}
	period, lead := value("period_us", 1000)*1000, value("lead_us", 100000)*1000
	octets, segments := int(value("octets", 64)), int(value("gso", 1))
	payload := make([]byte, octets*segments)
	fmt.Println("ready 1")
	start, sent, failed := now(clock)+lead, int64(0), int64(0)
	for i := int64(0); i < value("count", 1); i++ {
		due := start + i*period
		time.Sleep(time.Duration(due - lead - now(clock)))
		for j := 0; j < segments; j++ {
			mark := payload[j*octets:]
			copy(mark, "KTSF")
			binary.NativeEndian.PutUint32(mark[4:], uint32(value("sender", 0)))
			binary.NativeEndian.PutUint64(mark[8:], uint64(i)*uint64(segments)+uint64(j))
			binary.NativeEndian.PutUint64(mark[16:], uint64(due))
			binary.NativeEndian.PutUint32(mark[24:], uint32(clock))
		}
		at := binary.NativeEndian.AppendUint64(nil, uint64(due))
		messages := control(soTxTime, syscall.SOL_SOCKET, at)
		if segments > 1 {
			size := binary.NativeEndian.AppendUint16(nil, uint16(octets))
			messages = append(messages, control(udpSegment, solUDP, size)...)
		}
		if _, err := syscall.SendmsgN(socket, payload, messages, to, 0); err != nil {
			failed++
			fmt.Fprintln(os.Stderr, err)
		} else {
			sent++
		}
	}
	fmt.Printf("sent %d\nfailed %d\n", sent, failed)
}
