// SPDX-License-Identifier: Apache-2.0

// Command ktsn-respawn starts a program again within milliseconds of its death: `ktsn-respawn --help`. The node's image has it as a name
// of ktsn-node-agent.
package main

import (
	"os"

	"ktsn.io/ktsn/k8s/internal/respawn"
)

func main() { respawn.Main(os.Args[1:]) }
