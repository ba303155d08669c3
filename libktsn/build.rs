// SPDX-License-Identifier: Apache-2.0
//! Compiles the variadic shim and links the library without any C library.

fn main() {
    println!("cargo:rerun-if-changed=shim/variadic.c");
    cc::Build::new()
        .file("shim/variadic.c")
        .std("c11")
        .flag("-ffreestanding")
        .flag("-fno-stack-protector")
        // Else the compiler recognises the loop in memcpy and calls memcpy.
        .flag("-fno-builtin")
        .flag("-fvisibility=hidden")
        // A thread is cancelled inside fcntl by unwinding through us.
        .flag("-fasynchronous-unwind-tables")
        .flag("-Wall")
        .flag("-Wextra")
        .flag("-Werror")
        .flag("-Wconversion")
        .flag_if_supported("-fno-tree-loop-distribute-patterns")
        .pic(true)
        .opt_level(2)
        .compile("ktsn_variadic");
    for argument in [
        "-nostdlib",
        "-nodefaultlibs",
        "-nostartfiles",
        "-Wl,--allow-shlib-undefined",
        "-Wl,--gc-sections",
        "-Wl,-soname,libktsn.so",
        "-Wl,-z,relro",
        "-Wl,-z,noexecstack",
        // Text only: no build identity that changes with the machine.
        "-Wl,--build-id=none",
    ] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
}
