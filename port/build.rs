// SPDX-License-Identifier: Apache-2.0
//! With the feature `dpdk`: compiles the shim against the system's libdpdk, found by pkg-config. Without it: nothing.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "dpdk")]
    dpdk::build();
}

#[cfg(feature = "dpdk")]
mod dpdk {
    use std::process::Command;

    const SHIM: &str = "src/dpdk/shim.c";
    /// What the shim and sys.rs call; drivers are plug-ins that DPDK loads itself.
    const LIBRARIES: [&str; 4] = ["rte_eal", "rte_ethdev", "rte_mbuf", "rte_mempool"];

    pub(super) fn build() {
        println!("cargo:rerun-if-changed={SHIM}");
        let mut shim = cc::Build::new();
        shim.file(SHIM).std("gnu11").flag("-Wextra").flag("-Wconversion").warnings_into_errors(true);
        let mut words = pkg_config(&["--cflags", "libdpdk"]).into_iter();
        while let Some(word) = words.next() {
            if let Some(directory) = word.strip_prefix("-I") {
                // Its headers are not ours to mend.
                shim.flag("-isystem").flag(directory);
            } else {
                shim.flag(&word);
                if word == "-include" {
                    shim.flag(words.next().unwrap_or_default());
                }
            }
        }
        shim.compile("ktsn_dpdk");
        for word in pkg_config(&["--libs-only-L", "libdpdk"]) {
            if let Some(directory) = word.strip_prefix("-L") {
                println!("cargo:rustc-link-search=native={directory}");
            }
        }
        for library in LIBRARIES {
            println!("cargo:rustc-link-lib=dylib={library}");
        }
    }

    /// What pkg-config answers, by words.
    fn pkg_config(arguments: &[&str]) -> Vec<String> {
        let remedy = "the feature `dpdk` needs DPDK's headers: apt-get install libdpdk-dev pkg-config";
        let answer = Command::new("pkg-config").args(arguments).output();
        let answer = answer.unwrap_or_else(|error| panic!("pkg-config: {error}; {remedy}"));
        let said = String::from_utf8_lossy(&answer.stderr);
        assert!(answer.status.success(), "pkg-config {}: {said}; {remedy}", arguments.join(" "));
        String::from_utf8_lossy(&answer.stdout).split_whitespace().map(str::to_owned).collect()
    }
}
