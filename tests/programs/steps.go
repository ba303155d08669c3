// SPDX-License-Identifier: Apache-2.0

// The steps (steps.h) where Go itself makes a difference: a static program with system calls of its own, which no library
// can see.
package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

const (
	soTxtime = 61
	clockTai = 11
)

var (
	fds   = map[int]int{}
	names = map[syscall.Errno]string{
		syscall.EINVAL: "EINVAL", syscall.EPERM: "EPERM", syscall.EMSGSIZE: "EMSGSIZE",
		syscall.EDESTADDRREQ: "EDESTADDRREQ", syscall.EAGAIN: "EAGAIN", syscall.EISCONN: "EISCONN",
	}
)

func now(clock uintptr) int64 {
	var at syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&at)), 0)
	return at.Nano()
}

func address(text string) syscall.Sockaddr {
	comma := strings.LastIndex(text, ",")
	port, _ := strconv.Atoi(text[comma+1:])
	host := net.ParseIP(text[:comma])
	if four := host.To4(); four != nil {
		return &syscall.SockaddrInet4{Port: port, Addr: [4]byte(four)}
	}
	return &syscall.SockaddrInet6{Port: port, Addr: [16]byte(host)}
}

func keys(words []string) map[string]string {
	found := map[string]string{}
	for _, word := range words {
		if key, value, ok := strings.Cut(word, "="); ok {
			found[key] = value
		}
	}
	return found
}

func number(key map[string]string, name string, fallback int) int {
	if value, err := strconv.Atoi(key[name]); err == nil {
		return value
	}
	return fallback
}

// One control message with the transmit time.
func control(at uint64) []byte {
	message := make([]byte, syscall.CmsgSpace(8))
	binary.LittleEndian.PutUint64(message[0:], uint64(syscall.CmsgLen(8)))
	binary.LittleEndian.PutUint32(message[8:], syscall.SOL_SOCKET)
	binary.LittleEndian.PutUint32(message[12:], soTxtime)
	binary.LittleEndian.PutUint64(message[16:], at)
	return message
}

func instant(text string) uint64 {
	_, when, _ := strings.Cut(text, ":")
	ahead, _ := strconv.ParseInt(when, 10, 64)
	return uint64(now(clockTai) + ahead)
}

func send(which int, key map[string]string) (string, error) {
	fill, size := "a", number(key, "size", 10)
	if key["fill"] != "" {
		fill = key["fill"]
	}
	data := []byte(strings.Repeat(fill, size))
	var to syscall.Sockaddr
	if key["to"] != "" {
		to = address(key["to"])
	}
	var more []byte
	if key["tx"] != "" {
		more = control(instant(key["tx"]))
	}
	if count := number(key, "count", 0); count > 0 {
		text := fmt.Sprintf("%d:", count)
		for i := 0; i < count; i++ {
			part := []byte(strings.Repeat(string(rune(fill[0])+rune(i)), size))
			sent, err := syscall.SendmsgN(fds[which], part, more, to, 0)
			if err != nil {
				return "", err
			}
			text += fmt.Sprintf(" %d", sent)
		}
		return text, nil
	}
	sent, err := 0, error(nil)
	switch key["via"] {
	case "sendto":
		sent, err = size, syscall.Sendto(fds[which], data, 0, to)
	case "send", "write", "writev":
		total := 0
		for _, part := range strings.Split(key["size"], "+") {
			octets, _ := strconv.Atoi(part)
			total += octets
		}
		if total > 0 {
			data = []byte(strings.Repeat(fill, total))
		}
		sent, err = syscall.Write(fds[which], data)
	default:
		sent, err = syscall.SendmsgN(fds[which], data, more, to, 0)
	}
	return strconv.Itoa(sent), err
}

func txtime(which int, key map[string]string) error {
	value := make([]byte, 8)
	binary.LittleEndian.PutUint32(value, clockTai)
	binary.LittleEndian.PutUint32(value[4:], uint32(number(key, "flags", 0)))
	return syscall.SetsockoptString(fds[which], syscall.SOL_SOCKET, soTxtime, string(value))
}

func getTxtime(which int) (string, error) {
	var value [2]uint32
	octets := uint32(8)
	_, _, err := syscall.Syscall6(syscall.SYS_GETSOCKOPT, uintptr(fds[which]), syscall.SOL_SOCKET, soTxtime,
		uintptr(unsafe.Pointer(&value)), uintptr(unsafe.Pointer(&octets)), 0)
	if err != 0 {
		return "", err
	}
	return fmt.Sprintf("%d octets, clock %d flags %x", octets, int32(value[0]), value[1]), nil
}

func name(which int) (string, error) {
	found, err := syscall.Getsockname(fds[which])
	port := 0
	switch own := found.(type) {
	case *syscall.SockaddrInet4:
		port = own.Port
	case *syscall.SockaddrInet6:
		port = own.Port
	}
	switch {
	case port == 0:
		return "no port", err
	case port >= 32768:
		return "a port of the kernel's", err
	}
	return "a port of its own", err
}

func receive(which int) (string, error) {
	data := make([]byte, 70000)
	limit := syscall.Timeval{Sec: 1}
	syscall.SetsockoptTimeval(fds[which], syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &limit)
	octets, _, err := syscall.Recvfrom(fds[which], data, 0)
	if err == syscall.EAGAIN {
		return "nothing", nil
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d of %c", octets, data[0]), nil
}

func act(verb string, words []string) (string, error) {
	key := keys(words)
	which, _ := strconv.Atoi(words[0])
	switch verb {
	case "socket":
		family := map[string]int{"inet": syscall.AF_INET, "inet6": syscall.AF_INET6}[words[1]]
		fd, err := syscall.Socket(family, syscall.SOCK_DGRAM, 0)
		fds[which] = fd
		return "0", err
	case "txtime":
		return "0", txtime(which, key)
	case "gettxtime":
		return getTxtime(which)
	case "connect":
		return "0", syscall.Connect(fds[which], address(words[1]))
	case "name":
		return name(which)
	case "send":
		return send(which, key)
	case "recv":
		return receive(which)
	}
	fmt.Fprintln(os.Stderr, verb, "is no verb")
	os.Exit(3)
	return "", nil
}

func main() {
	input, count := bufio.NewReader(os.Stdin), 0
	for _, step := range os.Args[1:] {
		words := strings.Fields(step)
		switch words[0] {
		case "pause":
			fmt.Fprintln(os.Stderr, "pause")
			input.ReadString('\n')
			continue
		}
		count++
		text, err := act(words[0], words[1:])
		if number, ok := err.(syscall.Errno); ok {
			text = names[number]
		}
		fmt.Printf("%d %s: %s\n", count, words[0], text)
	}
}
