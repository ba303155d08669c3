// SPDX-License-Identifier: Apache-2.0
//! KTSN's own parts: the run directory and what serves there, libktsn.so and whether it loads.

use std::path::Path;
use std::process::{Command, Stdio};

use super::finding::{Finding, Look};
use crate::{control, installed};

/// What the findings of this page say about the daemon.
pub(super) struct Place {
    /// All findings.
    pub(super) findings: Vec<Finding>,
    /// A ktsnd serves clients there: then this process needs no rights of its own.
    pub(super) is_served: bool,
}

/// Looks at the run directory and the library.
pub(super) fn look(run_dir: &Path) -> Place {
    let socket = run_dir.join("client/ktsn.sock");
    // A connection without a greeting ends by itself.
    let is_served = is_seqpacket_served(&socket);
    let mut findings = vec![clients(&socket, is_served), daemon(run_dir, is_served)];
    findings.push(library());
    Place { findings, is_served }
}

fn is_seqpacket_served(socket: &Path) -> bool {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let Ok(address) = SocketAddrUnix::new(socket) else { return false };
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .and_then(|ours| connect(&ours, &address))
        .is_ok()
}

fn clients(socket: &Path, is_served: bool) -> Finding {
    const LOOK: Look = Look::at("client_socket", "connect(2) to the socket");
    if is_served {
        return LOOK.ok(socket.display().to_string(), "programs under `ktsn run` attach here");
    }
    let (value, remedy) = if socket.exists() {
        ("no daemon serves it (left over, or not for this user)", "start ktsnd with this run directory")
    } else {
        ("does not exist", "start ktsnd, or name its directory with --run-dir or KTSN_RUN_DIR")
    };
    LOOK.warn(
        format!("{}: {value}", socket.display()),
        "timed sends of programs go to the kernel (policy kernel) or fail (strict)",
        format!("{remedy}; `ktsn run --with-daemon IFACE` starts one of its own"),
    )
}

fn daemon(run_dir: &Path, is_served: bool) -> Finding {
    const LOOK: Look = Look::at("ktsnd", "ktsnd's Health");
    let asked = control::runtime().map_err(|error| error.to_string()).and_then(|runtime| {
        let health = runtime.block_on(async {
            let mut client = control::connect(run_dir).await?;
            control::answer(run_dir, client.health(ktsn_proto::v1::HealthRequest {})).await
        });
        health.map_err(|error| error.to_string())
    });
    match asked {
        Ok(health) if health.serving && health.warnings.is_empty() => {
            LOOK.ok("serving", "`ktsn status` shows what it does")
        }
        Ok(health) if health.serving => LOOK.warn(
            format!("serving, with warnings: {}", health.warnings.join("; ")),
            "it works, with less precision or fewer attachments than it could",
            "each warning names its remedy; `ktsn status` shows them again",
        ),
        Ok(_) => LOOK.fail("not serving", "its frames do not leave", "look at its log"),
        // Only root may ask; a program needs no more than the client socket.
        Err(what) if is_served => LOOK.not_known(
            format!("it takes clients; {what}"),
            "whether it sends their frames is its state, which root may ask",
            "run doctor as root",
        ),
        Err(what) => {
            LOOK.warn(what, "no ktsnd sends timed frames for this run directory", "start ktsnd there")
        }
    }
}

fn library() -> Finding {
    const LOOK: Look = Look::at("libktsn", "`cat /proc/self/maps` with LD_PRELOAD");
    let path = match installed::library() {
        Ok(path) => path,
        Err(missing) => {
            return LOOK.fail("not found", "`ktsn run` cannot serve any program", missing.to_string());
        }
    };
    // The loader only complains when it cannot preload: the program's own map of memory is the proof.
    let cat = Command::new("cat")
        .arg("/proc/self/maps")
        .env("LD_PRELOAD", &path)
        .env("KTSN_LOG", "off")
        .stdin(Stdio::null())
        .output();
    let shown = path.display().to_string();
    match cat {
        Ok(output) if String::from_utf8_lossy(&output.stdout).contains(&shown) => {
            LOOK.ok(shown, "a program was run with it preloaded")
        }
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().next().unwrap_or("the loader said nothing").to_owned();
            LOOK.fail(
                format!("{shown}: not loaded: {said}"),
                "`ktsn run` cannot serve any program",
                "use the libktsn.so of this machine's architecture (make build), readable by every user",
            )
        }
        Err(error) => LOOK.not_known(
            format!("{shown}: `cat` could not be run: {error}"),
            "whether it loads is unknown",
            "put cat (coreutils) on the search path",
        ),
    }
}
