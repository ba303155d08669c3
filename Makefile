# SPDX-License-Identifier: Apache-2.0
# The one list of commands. It stays thin: what needs more than a line lives in scripts/.
# Targets never run beside each other (several are timed); `make -j` still gives cargo its jobs.
.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help setup build programs lint test test-k8s test-loom test-vm test-dpdk test-clients test-injections test-hostile package test-package test-plant docs test-docs soak demo bench bench-sched bench-overlay bench-receive bench-datapaths bench-cni bench-recovery bench-virtio-net bench-vhost-user bench-rtos bench-rt bench-vm bench-scale bench-clock test-virtio-net fuzz fuzz-virtio-net e2e-k8s clean

CARGO ?= cargo
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
BIN := $(TARGET_DIR)/release
export CARGO

help: ## list the targets
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | while IFS='	' read -r name text; do printf '  make %-13s %s\n' "$$name" "$$text"; done

setup: ## install the Debian packages that are missing (root); a second run does nothing
	@scripts/setup.sh

build: programs ## build ktsn, ktsn-bench, ktsnd, libktsn.so and the Kubernetes programs into target/release
	@scripts/go.sh build $(BIN)

programs: setup ## the same without the Kubernetes programs
	$(CARGO) build --release --locked -p ktsn -p ktsn-bench -p ktsnd
	$(CARGO) build --profile hook -p libktsn --locked
	@scripts/install-hook.sh $(TARGET_DIR)/hook/libktsn.so $(BIN)/libktsn.so

package: build ## Debian package, RPM, images, Helm chart, SBOMs and checksums, into out/package
	@scripts/package.py --programs $(BIN)

lint: setup ## formatting, clippy, staticcheck, rustdoc, shellcheck, and the project's own checks
	@scripts/lint.sh

test: setup ## builds and runs every test of the Rust workspace, and judges skips by tests/skips.toml (root)
	@scripts/test.sh

test-k8s: setup ## the tests of the Go programs, into out/test-k8s (root)
	@scripts/test.sh k8s

test-loom: setup ## the loom models of the ring, into out/test-loom (root)
	@scripts/test.sh loom

test-vm: setup ## guests of `ktsn vm` under QEMU and User-mode Linux, into out/test-vm (root)
	@scripts/test.sh vm

test-dpdk: setup ## the tests of DPDK's ports, and vhost-user against testpmd and OVS-DPDK, into out/test-dpdk (root)
	@scripts/test.sh dpdk

test-clients: setup ## real programs under libktsn against the kernel, into out/test/clients.json (root); ONLY=text picks cells
	@scripts/clients.sh $(ONLY)

test-virtio-net: setup ## the driver of virtio-net/: on the host, and in guests under QEMU, into out/virtio-net; ONLY=text picks checks
	@virtio-net/test/run.py $(if $(ONLY),--only "$(ONLY)")

test-package: package ## installs and removes the packages in a clean Debian 12 and in a guest of it under systemd, starts the images' programs, into out/test-package (root); OLD=an older out/package: update and rollback
	@tests/package/test.py $(BIN) $(OLD)

test-plant: package ## two hosts with real drivers and other kernels under QEMU 11, the scenes of tests/plant/scenes, into out/plant (root); ALL=1: all cards, kernels and scenes; ONLY=text
	@tests/plant/plant.py $(if $(ALL),--all) $(if $(ONLY),--only "$(ONLY)")

docs: programs ## the documentation as HTML with search, into out/docs/html
	@scripts/docs.py $(BIN)

test-docs: docs build ## runs the commands that the pages show, into out/test-docs (root); ONLY=text picks pages
	@tests/docs/test.py $(BIN) $(if $(ONLY),--only "$(ONLY)")

test-injections: setup ## a signal at every instruction of an expecting call, by ptrace, minutes (root, x86-64); ONLY=text
	$(CARGO) test --locked --test injections -- --nocapture --test-threads=1 $(ONLY)

test-hostile: programs ## pods attack a daemon beside an innocent stream, timed, into out/hostile/results.json (root); ONLY=text ROUNDS=10
	@PROGRAMS=$(BIN) ONLY="$(ONLY)" ROUNDS="$(ROUNDS)" FRAMES="$(FRAMES)" QUIET="$(QUIET)" scripts/hostile.sh

soak: programs ## kill, cut, fill and delete at random under traffic; accounts for every frame and resource in out/soak/results.json (root); MINUTES=10 SEED=n BIN_OLD=directory of an older ktsnd and libktsn.so
	@tests/soak/soak.py --programs $(BIN) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(if $(BIN_OLD),--old $(BIN_OLD))

demo: programs ## measure KTSN against bare metal and Flannel's path; writes out/demo/report.html (root)
	@scripts/demo.sh $(BIN)/ktsn

bench: programs ## micro-benchmarks into out/bench/micro.json (root)
	@mkdir -p out/bench
	$(CARGO) build --release --locked -p ktsnd --example worker_throughput
	$(BIN)/ktsn bench micro --json out/bench/micro.json

bench-sched: programs ## what a gate decision costs, and the property suite, into out/bench/sched.json (root)
	@mkdir -p out/bench
	$(CARGO) build --release --locked -p ktsn-lab --example sched_cost
	$(BIN)/ktsn bench sched --json out/bench/sched.json

bench-overlay: programs ## all ways from pod to pod, idle and loaded, OVS-DPDK, 200 attachments, 1,000 peers; writes out/bench/overlay.{json,html} (root)
	@mkdir -p out/bench
	$(CARGO) build --release --locked -p ktsnd --example worker_throughput
	$(CARGO) build --release --locked -p ktsn-bench --features dpdk
	$(BIN)/ktsn bench overlay --json out/bench/overlay.json --report out/bench/overlay.html

bench-receive: programs ## listeners and control loops, with and without expected-arrival receive; writes out/bench/{receive,loop}.{json,html} (root)
	@mkdir -p out/bench
	$(BIN)/ktsn bench receive --json out/bench/receive.json --report out/bench/receive.html
	$(BIN)/ktsn bench loop --json out/bench/loop.json --report out/bench/loop.html

bench-datapaths: programs ## a virtual machine's ways through its host, both directions; writes out/bench/datapaths.{json,html} (root); SECONDS=10.5; ENDS=both; QUICK=1
	@mkdir -p out/bench
	$(BIN)/ktsn bench datapaths --ends $(or $(ENDS),both) $(if $(QUICK),--seconds 1 --rounds 1,--seconds $(or $(SECONDS),10.5)) --json out/bench/datapaths.json --report out/bench/datapaths.html --records

bench-cni: build ## what CNI's ADD costs beside the standard bridge plugin, by turns, into out/bench/cni.json (root)
	@mkdir -p out/bench
	@scripts/go.sh bench-cni $(BIN) out/bench/cni.json

bench-scale: build ## a cluster of 2,000 Nodes, 20,000 pods and 10,000 Streams on a real API server, without kubelets, into out/bench/scale.json (root); NODES=2000
	@scripts/go.sh bench-scale $(BIN) $(if $(NODES),--nodes $(NODES))

bench-recovery: programs ## how soon ktsnd follows a restart, a deleted pod, a new address, into out/bench/recovery.json (root); ROUNDS=10
	@KTSND=$(BIN)/ktsnd ROUNDS="$(ROUNDS)" ONLY="$(ONLY)" scripts/recovery.sh

bench-virtio-net: setup ## boot and interrupts of the driver's guests against their bars, timed, into out/virtio-net
	@mkdir -p out
	@flock out/.measure.lock virtio-net/test/run.py --bench

bench-vhost-user: setup ## frames a second to DPDK's testpmd and back, beside DPDK's own virtio-user, timed, into out/virtio-net (root)
	$(CARGO) build --release --locked -p ktsn-virtio-net --example echo
	@mkdir -p out
	@flock out/.measure.lock virtio-net/test/vhost_user.py $(BIN)/examples/echo

bench-rtos: programs ## a FreeRTOS guest with the driver of virtio-net/ beside a Linux guest, TCP and round trips; writes out/bench/rtos.{json,html}; QUICK=1
	@mkdir -p out/bench
	$(BIN)/ktsn bench rtos $(if $(QUICK),--quick) --json out/bench/rtos.json --report out/bench/rtos.html --records

bench-rt: programs ## whether this machine, containers and guests on it are fit for real time; writes out/bench/rt.{json,html} (root); SECONDS=10 a cell
	@mkdir -p out/bench
	@rm -rf out/rt
	$(BIN)/ktsn rt run --system host,container,container-fifo,qemu,rtos --profile all --duration $(or $(SECONDS),10)s --out out/rt
	@cp out/rt/rt.json out/rt/rt.html out/bench/

bench-vm: programs ## publisher and subscriber in guests on two hosts: bridge, OVS-DPDK, no guests; writes out/bench/vm.{json,html} (root); QUICK=1
	@mkdir -p out/bench
	$(BIN)/ktsn bench vm $(if $(QUICK),--quick) --json out/bench/vm.json --report out/bench/vm.html --records

bench-clock: programs ## a guest's clock against its host's: vPTP, and chrony over virtio-net beside it; writes out/bench/clock.json (root); QUICK=1
	@mkdir -p out/bench
	$(BIN)/ktsn bench clock $(if $(QUICK),--seconds 10 --settle 5s) --json out/bench/clock.json

fuzz: setup ## every fuzz target, guided by coverage, from fuzz/corpus; SECONDS=20 each, TARGET=text picks, CORPUS=update keeps (scripts/fuzz.sh --help)
	@SECONDS_EACH="$(SECONDS)" TARGET="$(TARGET)" CORPUS="$(CORPUS)" ASAN="$(ASAN)" scripts/fuzz.sh

fuzz-virtio-net: setup ## a hostile device against the driver of virtio-net/; SECONDS=60
	@virtio-net/test/run.py --fuzz "$(or $(SECONDS),60)"

e2e-k8s: build ## KTSN in a real two-node Kubernetes cluster on this machine; writes out/e2e/k8s.{json,html} (root); QUICK=1 judges no times, CACHED=1 builds no Kubernetes, OLD=an older out/package: update and rollback
	@tests/k8s/e2e.py --programs $(BIN) $(if $(QUICK),--quick) $(if $(CACHED),--cached) $(if $(OLD),--old $(OLD))

clean: ## remove everything that the other targets made
	$(CARGO) clean
	rm -rf out
