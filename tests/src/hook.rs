// SPDX-License-Identifier: Apache-2.0
//! Running ordinary programs with and without libktsn.so.
//!
//! In: C sources of `programs/`, the library's crate. Out: built binaries, and what a program printed. Nothing here
//! sends or receives.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::peer::{Behaviour, Events, Peer};

/// libktsn.so, built once per test binary in its own profile.
///
/// # Panics
/// When it does not build.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let library = ktsn_eventually::library();
        // Programs without rights have to load it, too; a tree in root's home is closed to them.
        if library.ancestors().skip(1).all(may_be_entered_by_all) {
            return library.to_path_buf();
        }
        let copy = lasting_directory().join("libktsn.so");
        std::fs::copy(library, &copy).expect("copy of the library");
        copy
    })
}

fn may_be_entered_by_all(directory: &Path) -> bool {
    let mode = std::fs::metadata(directory)
        .map(|found| std::os::unix::fs::PermissionsExt::mode(&found.permissions()));
    mode.is_ok_and(|mode| mode & 0o001 != 0)
}

/// The command line `ktsn`, with `ktsn-bench` and `ktsnd` beside it.
///
/// # Panics
/// When they do not build.
pub fn ktsn() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| ktsn_eventually::programs().join("ktsn"))
}

/// `programs/NAME.c`, or where there is no such file all of `programs/NAME_*.c`, compiled once per test binary.
///
/// # Panics
/// When it does not compile.
pub fn compiled(name: &str) -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    static PATHS: Mutex<BTreeMap<String, &'static Path>> = Mutex::new(BTreeMap::new());
    let mut paths = PATHS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = paths.get(name) {
        return path;
    }
    let path = DIRECTORY.get_or_init(lasting_directory).join(name);
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    let one = programs.join(format!("{name}.c"));
    let parts = if one.exists() { vec![one] } else { sources(&programs, &format!("{name}_")) };
    let flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-Wconversion", "-pthread", "-o"];
    let done = Command::new("gcc").args(flags).arg(&path).args(parts).output().expect("gcc");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let path: &'static Path = Box::leak(path.into_boxed_path());
    paths.insert(name.to_owned(), path);
    path
}

/// Which C library a program is linked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Libc {
    /// gcc and glibc.
    Gnu,
    /// musl-gcc, dynamically linked.
    Musl,
}

/// Both.
pub const LIBCS: [Libc; 2] = [Libc::Gnu, Libc::Musl];

/// The calls by which the program of steps waits for arrivals, in both C libraries. glibc has `epoll_pwait2`, too.
pub const ARRIVAL_CALLS: [&str; 14] = [
    "recv",
    "recvfrom",
    "recvmsg",
    "recvmmsg",
    "read",
    "readv",
    "poll",
    "ppoll",
    "many",
    "select",
    "pselect",
    "epoll",
    "edge",
    "epoll_pwait",
];

/// The program of steps (`programs/steps.h`), compiled once for each C library.
///
/// # Panics
/// When it does not compile.
pub fn steps(libc: Libc) -> &'static Path {
    static PROGRAMS: OnceLock<[PathBuf; 2]> = OnceLock::new();
    let both = PROGRAMS.get_or_init(|| {
        let directory = lasting_directory();
        let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
        let flags =
            ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-Wconversion", "-Wno-sign-conversion"];
        ["gcc", "musl-gcc"].map(|compiler| {
            let program = directory.join(format!("steps-{compiler}"));
            let compiled = Command::new(compiler)
                .args(flags)
                .args(["-D_FILE_OFFSET_BITS=64", "-pthread", "-o"])
                .arg(&program)
                .args(sources(&programs, "steps_"))
                .output()
                .expect(compiler);
            assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
            program
        })
    });
    &both[usize::from(libc == Libc::Musl)]
}

/// The parts of a program: all of `programs/PREFIX*.c`.
fn sources(programs: &Path, prefix: &str) -> Vec<PathBuf> {
    let is_part = |path: &PathBuf| {
        let name = path.file_name().and_then(std::ffi::OsStr::to_str).unwrap_or_default();
        name.starts_with(prefix) && name.ends_with(".c")
    };
    let entries = std::fs::read_dir(programs).expect("programs");
    let mut sources: Vec<PathBuf> =
        entries.map(|entry| entry.expect("entry").path()).filter(is_part).collect();
    sources.sort();
    sources
}

/// A temporary directory that unprivileged programs may enter.
///
/// # Panics
/// When it cannot be made.
#[must_use]
pub fn open_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("temporary directory");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(directory.path(), open).expect("permissions");
    directory
}

/// An [`open_directory`] that lasts as long as this process, for what all its tests share: nothing is dropped at the end of
/// a process, so a shell waits for that end and removes it.
///
/// # Panics
/// When it cannot be made.
#[must_use]
pub fn lasting_directory() -> PathBuf {
    let directory = open_directory().keep();
    let mut shell = Command::new("sh");
    // Ctrl-C is sent to the shell, too. No child of ours gets the pipe's writing end.
    shell
        .args(["-c", "trap '' INT TERM HUP; read -r _; rm -rf \"$1\"", "sh"])
        .arg(&directory)
        .stdin(Stdio::piped());
    std::mem::forget(shell.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("sh"));
    directory
}

/// A command that runs with the library preloaded.
#[must_use]
pub fn hooked(program: impl AsRef<std::ffi::OsStr>, run_dir: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("LD_PRELOAD", library())
        .env("KTSN_RUN_DIR", run_dir)
        .env_remove("KTSN_POLICY")
        .stdin(Stdio::null());
    command
}

/// A script as arguments of the program of steps: one step a line, `{port}` filled in. Sends go to 127.0.0.1 and `port`, 200 ms ahead
/// of TAI, where they say nothing else; a step without a label must succeed.
#[must_use]
pub fn arguments(script: &str, port: u16) -> Vec<String> {
    let defaults = format!("defaults to=127.0.0.1,{port} tx=tai:+200000000");
    let script = script.replace("{port}", &port.to_string());
    let steps = script.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty());
    ["quiet".to_owned(), defaults].into_iter().chain(steps).collect()
}

/// The program of steps with the library preloaded.
#[must_use]
pub fn scenario(libc: Libc, run_dir: &Path, script: &str, port: u16) -> Command {
    let mut command = hooked(steps(libc), run_dir);
    command.args(arguments(script, port));
    command
}

/// The program of steps alone.
#[must_use]
pub fn unhooked(libc: Libc, script: &str, port: u16) -> Command {
    let mut command = Command::new(steps(libc));
    command.args(arguments(script, port)).stdin(Stdio::null());
    command
}

/// The lines `what value` that a script printed. A value that occurs twice is the last one.
///
/// # Panics
/// When the program failed.
#[must_use]
pub fn values(output: &Output) -> BTreeMap<String, i64> {
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{:?}\n{text}\n{errors}", output.status);
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(what, value)| (what.to_owned(), value.parse().unwrap_or_else(|_| panic!("{what} {value}"))))
        .collect()
}

/// Runs a script under the library with a peer; `check` gets what it printed and what the peer saw.
///
/// # Panics
/// When the program fails, or the peer got what is no frame.
pub fn run(
    libc: Libc,
    script: &str,
    check: impl FnOnce(&BTreeMap<String, i64>, &[String], &Events),
) -> Output {
    run_with(Behaviour::default(), libc, script, check)
}

/// Runs `script` like [`run`], with a peer of this behaviour.
///
/// # Panics
/// When the program fails, or the peer got what is no frame.
pub fn run_with(
    behaviour: Behaviour,
    libc: Libc,
    script: &str,
    check: impl FnOnce(&BTreeMap<String, i64>, &[String], &Events),
) -> Output {
    let run_dir = open_directory();
    let peer = Peer::start(run_dir.path(), behaviour);
    let output = scenario(libc, run_dir.path(), script, 4321).output().expect("program");
    let printed = values(&output);
    let texts = peer.texts();
    let events = peer.events();
    assert_eq!((events.slot_errors, events.broken), (0, 0), "{script} {libc:?}");
    check(&printed, &texts, &events);
    output
}

/// Runs again until a run was awake for so many arrivals: on a busy machine a process pauses its spinning for 10 s.
///
/// # Panics
/// When none of 20 runs was.
pub fn until_hits(least: u64, run: impl Fn() -> u64) {
    let seen: Vec<u64> = (0..20).map(|_| run()).take_while(|hits| *hits < least).collect();
    assert!(seen.len() < 20, "hits of each run: {seen:?}; expected {least}");
}

/// A child process that is killed and waited for whatever happens to the test.
#[derive(Debug)]
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
