// SPDX-License-Identifier: Apache-2.0

//go:build ktsnfault

package main

import (
	"os"
	"syscall"
)

// Only in programs built for tests: KTSN_CNI_DIE_AT names the point at which the process is killed.
func init() {
	place := os.Getenv("KTSN_CNI_DIE_AT")
	testKillPoint = func(name string) {
		if name == place {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
}
