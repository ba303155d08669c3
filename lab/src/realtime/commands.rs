// SPDX-License-Identifier: Apache-2.0
//! Command lines of probe and load. In: a plan's values. Out: words to start. Nothing is started here.
//!
//! A container here is namespaces of its own (processes, mounts, host name, IPC, network) and a control group of its own, on the machine's
//! file system. When its first process ends or is killed, the kernel ends all others of it.

use super::plan::{Cpus, Plan, list};
use ktsn_host::cyclictest;
use std::path::{Path, PathBuf};

/// Starts a command in new namespaces that end with it, and with its starter.
const CONTAINER: &[&str] =
    &["unshare", "--fork", "--kill-child", "--pid", "--mount", "--uts", "--ipc", "--mount-proc"];
/// Puts itself into the control groups before `--`, then becomes the command behind it.
const JOIN: &str =
    r#"while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" || exit 97; shift; done; shift; exec "$@""#;
/// Starts the words up to `--` beside the words behind it, and says so when the first ones end.
const BESIDE: &str = r#"load=; while [ "$1" != -- ]; do load="$load $1"; shift; done; shift
    ($load >/dev/null; echo "the load ended" >&2) & sleep 0.5; exec "$@""#;
/// What the log holds when a load ended before the probe.
pub(super) const LOAD_ENDED: &str = "the load ended";

/// Words of a command line.
pub(super) type Words = Vec<String>;

fn words(text: &[&str]) -> Words {
    text.iter().map(|&word| word.to_owned()).collect()
}

/// The probe: `cyclictest` that writes each latency in nanoseconds.
pub(super) fn probe(plan: &Plan, fifo: Option<u8>, cpu: Option<u32>, loops: u64) -> Words {
    cyclictest::command_line(plan.period, fifo, cpu, loops)
}

/// Workers that take square roots, and workers that take and give back memory: as in the paper.
pub(super) fn stress(program: &str, workers: u32, worker_mib: u64) -> Words {
    let count = workers.to_string();
    let mut line =
        words(&[program, "--cpu", &count, "--vm", &count, "--vm-bytes", &format!("{worker_mib}M")]);
    if program == "stress-ng" {
        line.extend(words(&["--cpu-method", "sqrt", "--quiet"]));
    }
    line
}

/// `command` on these CPUs only.
pub(super) fn on_cpus(cpus: &[u32], command: Words) -> Words {
    [words(&["taskset", "--cpu-list", &list(cpus)]), command].concat()
}

/// `command` in a container; with a network of its own unless it gets one otherwise.
pub(super) fn contained(own_network: bool, command: Words) -> Words {
    let network = if own_network { words(&["--net"]) } else { Words::new() };
    [words(CONTAINER), network, words(&["--"]), command].concat()
}

/// `command` without the right to real-time priorities.
pub(super) fn ordinary(command: Words) -> Words {
    [words(&["setpriv", "--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice", "--"]), command].concat()
}

/// `command` in these control groups.
pub(super) fn joined(groups: &[PathBuf], command: Words) -> Words {
    if groups.is_empty() {
        return command;
    }
    let groups: Words = groups.iter().map(|group| group.display().to_string()).collect();
    [words(&["sh", "-c", JOIN, "sh"]), groups, words(&["--"]), command].concat()
}

/// `command` beside a load; words of the load must have no spaces.
pub(super) fn beside(load: Words, command: Words) -> Words {
    [words(&["sh", "-c", BESIDE, "sh"]), load, words(&["--"]), command].concat()
}

/// Starts a command again and again, until it has failed fifteen times in a row: three seconds.
const FOREVER: &str =
    r#"n=0; while [ $n -lt 15 ]; do if "$@" >/dev/null; then n=0; else n=$((n + 1)); fi; sleep 0.2; done"#;

/// A loop that starts `command` again and again; it ends where the command does nothing but fail.
fn forever(command: &[&str]) -> Words {
    [words(&["sh", "-c", FOREVER, "sh"]), words(command)].concat()
}

/// The receiving and the sending end of the network load.
pub(super) fn network(address: &str) -> [Words; 2] {
    [
        words(&["iperf3", "--server", "--bind", address, "--forceflush"]),
        // Until the server listens, and until it is killed.
        forever(&["iperf3", "--client", address, "--time", "86400", "--interval", "0"]),
    ]
}

/// What the receiving end says when the sending one is there.
pub(super) const CONNECTED: &str = "Accepted connection";

/// Octets that a writer writes over again and again.
pub(super) const WRITTEN_MIB: u64 = 64;

/// A writer past the page cache.
pub(super) fn disk(has_fio: bool, file: &Path) -> Words {
    let file = file.display().to_string();
    if has_fio {
        let size = format!("--size={WRITTEN_MIB}M");
        // fio takes a colon for the end of a name.
        let name = format!("--filename={}", file.replace('\\', "\\\\").replace(':', "\\:"));
        let line =
            ["fio", "--name=rt", &name, "--rw=randwrite", "--bs=4k", &size, "--direct=1", "--ioengine=psync"];
        return [words(&line), words(&["--time_based", "--runtime=30d"])].concat();
    }
    let count = format!("count={}", WRITTEN_MIB * 16);
    let of = format!("of={file}");
    forever(&["dd", "if=/dev/zero", &of, "bs=64k", &count, "oflag=direct", "conv=notrunc", "status=none"])
}

/// The CPUs of the load under a profile: all, or all but the pinned probe's.
pub(super) fn load_cpus(cpus: &Cpus, is_pinned: bool) -> Vec<u32> {
    if is_pinned { cpus.others() } else { cpus.all.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_time::Nanos;
    use std::process::Command;

    #[test]
    fn the_probe_is_started_as_in_the_paper() {
        let plan =
            Plan { period: Nanos::from_millis(10), ..super::super::tests::plan(Path::new("/nowhere")) };
        let line = probe(&plan, Some(99), Some(1), 1000).join(" ");
        assert_eq!(line, "cyclictest -v -N -u -m -t 1 -d 0 -i 10000 -l 1000 --policy fifo -p 99 -a 1");
        assert!(probe(&plan, None, None, 8).join(" ").ends_with("-l 8 --policy other"));
        assert_eq!(stress("stress", 10, 64).join(" "), "stress --cpu 10 --vm 10 --vm-bytes 64M");
    }

    fn output(line: &[String]) -> String {
        let output = Command::new(&line[0]).args(&line[1..]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    }

    #[test]
    fn a_load_that_only_fails_ends() {
        let begun = std::time::Instant::now();
        let line = forever(&["sh", "-c", "echo refused >&2; exit 1"]);
        assert_eq!(output(&line).matches("refused").count(), 15);
        assert!(begun.elapsed() > std::time::Duration::from_secs(3));
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("it's: here");
        let script = "[ -e \"$1\" ] || { touch \"$1\"; exit 1; }; rm \"$1\"; exit 2";
        let line = forever(&["sh", "-c", script, "sh", mark.to_str().unwrap()]);
        assert_eq!(output(&line), "");
    }

    #[test]
    fn a_writers_file_may_have_any_name() {
        let file = Path::new("/a:b/it's\\n");
        assert!(
            disk(true, file).contains(&"--filename=/a\\:b/it's\\\\n".to_owned()),
            "{:?}",
            disk(true, file)
        );
        assert!(disk(false, file).contains(&"of=/a:b/it's\\n".to_owned()));
    }

    #[test]
    fn wrappers_join_and_start_beside() {
        let folder = tempfile::tempdir().unwrap();
        let group = folder.path().join("a group");
        std::fs::create_dir(&group).unwrap();
        let own = words(&["sh", "-c", "echo $$ in $1", "sh", "a b"]);
        let text = output(&joined(std::slice::from_ref(&group), own));
        let pid = std::fs::read_to_string(group.join("cgroup.procs")).unwrap();
        assert_eq!(text, format!("{} in a b\n", pid.trim()));
        // A group that is not there is no reason to run outside of it.
        assert!(!output(&joined(&[folder.path().join("none")], words(&["echo", "ran"]))).contains("ran"));
        let mark = folder.path().join("mark");
        let load = words(&["touch", mark.to_str().unwrap()]);
        let text = output(&beside(load, words(&["echo", "x y"])));
        assert!(text.starts_with("x y\n") && text.contains(LOAD_ENDED) && mark.exists(), "{text}");
    }
}
