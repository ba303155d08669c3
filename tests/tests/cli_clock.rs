// SPDX-License-Identifier: Apache-2.0
//! `ktsn clock` on one machine: publisher and follower share files, and the follower's counter is the publisher's. The truth is then the
//! machine's own clock.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ktsn_eventually::eventually;
use ktsn_tests::cli::{err, ktsn, out, run};

const LONG: Duration = Duration::from_secs(60);

/// Files of one guest; the processes on them end with it.
struct Guest {
    directory: tempfile::TempDir,
    running: Vec<Child>,
}

impl Drop for Guest {
    fn drop(&mut self) {
        for child in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Guest {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), running: Vec::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn clock(&self, command: &str) -> Command {
        let mut clock = ktsn();
        clock.args(["clock", command, "--page"]).arg(self.path("page"));
        clock.arg("--exchange").arg(self.path("exchange"));
        clock
    }

    fn publish(&mut self) {
        let mut publisher = self.clock("publish");
        self.running.push(publisher.stderr(Stdio::null()).spawn().expect("ktsn starts"));
        wait_for("the page", || std::fs::read(self.path("page")).is_ok_and(|page| page.starts_with(b"VCLK")));
    }

    /// Kills the process: it ends nothing in order.
    fn kill(&mut self, index: usize) {
        let mut killed = self.running.remove(index);
        killed.kill().unwrap();
        killed.wait().unwrap();
    }

    fn follow(&mut self) {
        let mut follower = self.clock("follow");
        follower.arg("--status").arg(self.path("status")).args(["--discipline", "none", "--quiet"]);
        self.running.push(follower.stderr(Stdio::null()).spawn().expect("ktsn starts"));
    }

    fn status(&self) -> Option<serde_json::Value> {
        serde_json::from_slice(&std::fs::read(self.path("status")).ok()?).ok()
    }

    /// Waits until the follower says so; its status then.
    fn wait_for_state(&self, state: &str) -> serde_json::Value {
        wait_for(state, || self.status().is_some_and(|status| status["state"] == state));
        self.status().unwrap()
    }

    fn has_said(&self, words: &str) -> bool {
        self.status().is_some_and(|status| status["events"].to_string().contains(words))
    }
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    eventually(what, LONG, is_so);
}

#[test]
fn a_follower_follows_and_says_when_it_cannot() {
    let mut guest = Guest::new();
    guest.publish();
    guest.follow();
    let status = guest.wait_for_state("following");
    // The same counter and the same clock: what it says is off is its error.
    let (error, bound) = (status["error_ns"].as_i64().unwrap(), status["error_bound_ns"].as_i64().unwrap());
    assert!(error.abs() <= bound && bound < 100_000, "{status}");
    assert_eq!(status["counter"]["rate"], 1.0, "{status}");
    // Text, JSON, metrics.
    let path = guest.path("status");
    let shown = |option: &[&str]| {
        ktsn().args(["clock", "status", "--status"]).arg(&path).args(option).output().unwrap()
    };
    let text = shown(&[]);
    assert!(
        out(&text).starts_with("clock following: CLOCK_REALTIME is ") && text.status.success(),
        "{text:?}"
    );
    assert!(out(&shown(&["--prometheus"])).contains("\nktsn_vptp_following 1\n"));
    // The publisher is killed: the bound grows, and the clock is said to be unsynchronised. Another publisher is followed again.
    guest.kill(0);
    let status = guest.wait_for_state("unsynchronised");
    assert!(status["error_bound_ns"].as_i64().unwrap() > 1000, "{status}");
    assert_eq!(shown(&[]).status.code(), Some(1));
    guest.publish();
    // The order of processes: the follower is now the first.
    guest.wait_for_state("following");
    wait_for("the new marker", || guest.has_said("new disruption marker"));
    // A page full of lies, written over the publisher's.
    guest.kill(1);
    lie(&guest.path("page"), 48, &[0; 8]);
    wait_for("the lie", || guest.has_said("counter period is 0 ns, expected 0.01 to 1000"));
    guest.wait_for_state("unsynchronised");
    // A follower that has ended is not taken for one that follows.
    guest.kill(0);
    let status = shown(&[]);
    assert_eq!(status.status.code(), Some(1), "{status:?}");
}

/// A status that cannot be kept is no reason to let the clock go; a reader that has gone is one to end.
#[test]
fn a_full_disk_ends_no_follower_and_a_closed_pipe_ends_it_quietly() {
    let mut guest = Guest::new();
    guest.publish();
    guest.follow();
    let before = guest.wait_for_state("following");
    std::fs::create_dir(guest.path("status.new")).unwrap();
    // The status is due each second, and none can be kept.
    std::thread::sleep(Duration::from_millis(1500));
    assert!(guest.running[1].try_wait().unwrap().is_none(), "the follower has ended");
    std::fs::remove_dir(guest.path("status.new")).unwrap();
    let kept = |status: &serde_json::Value| status["updated_at_ns"].as_u64().unwrap_or(0);
    wait_for("the status", || guest.status().is_some_and(|status| kept(&status) > kept(&before)));
    // A second follower of the same status.
    let output = guest.clock("follow").arg("--status").arg(guest.path("status")).output().unwrap();
    assert!(err(&output).contains("another `ktsn clock follow` works"), "{}", err(&output));
    assert_eq!(output.status.code(), Some(1));
    let mut follower = guest.clock("follow");
    follower.arg("--status").arg(guest.path("second")).args(["--duration", "20s"]);
    let mut follower = follower.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(follower.stdout.take());
    assert_eq!(follower.wait().unwrap().code(), Some(0));
}

/// Changes octets of the page, with an even count.
fn lie(page: &Path, offset: usize, octets: &[u8]) {
    let mut content = std::fs::read(page).unwrap();
    content[offset..offset + octets.len()].copy_from_slice(octets);
    content[12] = content[12].wrapping_add(2) & !1;
    // In place: the follower has mapped this file.
    let file = std::fs::OpenOptions::new().write(true).open(page).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &content, 0).unwrap();
}

#[test]
fn wrong_use_says_what_to_do() {
    let output = run(&["clock", "follow", "--status", "/nonexistent/x"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(
        err(&output).contains("no ivshmem device (PCI 1af4:1110) holds a published page"),
        "{}",
        err(&output)
    );
    let output = run(&["clock", "publish", "--page", "/proc/none", "--exchange", "/proc/none"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let guest = Guest::new();
    let output = guest.clock("publish").args(["--interval", "2s"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(err(&output).contains("expected 1 ms to 1 s"), "{}", err(&output));
    let disk = guest.path("disk.img");
    std::fs::write(&disk, b"partitions").unwrap();
    let mut publisher = ktsn();
    publisher.args(["clock", "publish", "--page"]).arg(&disk).arg("--exchange").arg(guest.path("exchange"));
    let output = publisher.output().unwrap();
    assert!(err(&output).contains("disk.img: it has 10 octets, expected none or 65536"), "{}", err(&output));
    assert_eq!((output.status.code(), std::fs::read(&disk).unwrap()), (Some(1), b"partitions".to_vec()));
    let output = run(&["clock", "status", "--status", "/nonexistent/status"]);
    assert!(err(&output).contains("no `ktsn clock follow` has run here"), "{}", err(&output));
}
