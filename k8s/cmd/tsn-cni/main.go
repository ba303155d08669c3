// SPDX-License-Identifier: Apache-2.0

// Tsn-cni gives a pod an interface with timed transmission by KTSN (CNI 1.1).
//
// In: CNI's environment, the network's configuration on standard input, RUN_DIR/node.json and RUN_DIR/policies.json of the node
// agent where there is one. Out: a routed veth pair with addresses from an IPAM plugin, attached at ktsnd; in a chain the interface that is
// there, attached. It keeps one state file for each interface and nothing in memory. ADD is a list of (do, undo)
// steps; DEL is the same undos, from the saved state alone.
package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"runtime"
	"slices"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"

	"ktsn.io/ktsn/k8s/internal/nodeapi"
)

// Octets of standard input that DEL reads.
const stdinMax = 2 << 20

var supported = version.VersionsStartingFrom("0.3.0")

func main() {
	runtime.GOMAXPROCS(1) // gRPC's goroutines wake each other without waking other threads: a loaded node runs an ADD faster
	if len(os.Args) > 1 && os.Args[1] == "--version" {
		os.Stdout.WriteString("tsn-cni " + nodeapi.Version + "\n")
		return
	}
	if os.Getenv("CNI_COMMAND") == "DEL" {
		forgiveStdin()
	}
	functions := skel.CNIFuncs{
		Add:    verb(add),
		Del:    verb(del),
		Check:  verb(check),
		GC:     verb(gc),
		Status: verb(status),
	}
	skel.PluginMainFuncs(functions, supported, "tsn-cni "+nodeapi.Version+": CNI plugin of KTSN")
}

// verb gives the error of a verb its CNI code.
func verb(run func(*skel.CmdArgs) error) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		if err := run(args); err != nil {
			return coded(err)
		}
		return nil
	}
}

// forgiveStdin repairs the configuration of a DEL. DEL needs none, but the CNI library refuses a configuration without a name or version. Some
// runtimes pass what is left of it; a pod must not stay for ever because of that.
func forgiveStdin() {
	given, _ := io.ReadAll(io.LimitReader(os.Stdin, stdinMax))
	var conf map[string]json.RawMessage
	if json.Unmarshal(given, &conf) != nil || conf == nil {
		conf = map[string]json.RawMessage{}
	}
	var name, spoken string
	if json.Unmarshal(conf["name"], &name) != nil || utils.ValidateNetworkName(name) != nil {
		conf["name"] = json.RawMessage(`"unknown"`)
	}
	if json.Unmarshal(conf["cniVersion"], &spoken) != nil || !slices.Contains(supported.SupportedVersions(), spoken) {
		conf["cniVersion"] = json.RawMessage(`"1.0.0"`)
	}
	given, _ = json.Marshal(conf) // what was just read, and text
	reader, writer, err := os.Pipe()
	if err != nil {
		return // the library reads what is left: nothing, and says so
	}
	go func() {
		io.Copy(writer, bytes.NewReader(given))
		writer.Close()
	}()
	os.Stdin = reader
}
