// SPDX-License-Identifier: Apache-2.0
//! A run directory passes from one holder to the next.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use super::*;

const LONG: Duration = Duration::from_secs(60);

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// A wait for the directory; it goes on beside the test, and stops when the sender says so.
fn waiting(
    path: &Path,
) -> (oneshot::Sender<()>, tokio::task::JoinHandle<Result<Option<RunDir>, RunDirError>>) {
    let (stop, mut stopped) = oneshot::channel();
    let path = path.to_owned();
    (stop, tokio::spawn(async move { take_over(&path, LONG, &mut stopped).await }))
}

/// Waits until threads block on the lock, as many as `count`, and lets tasks run meanwhile.
async fn until_blocked(lock: &Path, count: usize) {
    let inode = format!(":{} ", fs::metadata(lock).unwrap().ino());
    loop {
        // A waiting lock has a line of its own with an arrow.
        let locks = fs::read_to_string("/proc/locks").unwrap();
        let waiting = locks.lines().filter(|line| line.contains("-> FLOCK") && line.contains(&inode)).count();
        if waiting == count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// All that is in a directory: names, octets, instants of the last change.
fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>, i64, i64)> {
    let mut all: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let found = fs::symlink_metadata(&path).unwrap();
            let octets = if found.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            (path, octets, found.mtime(), found.mtime_nsec())
        })
        .collect();
    all.sort();
    all
}

#[test]
fn a_free_directory_is_taken_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    let (_stop, mut stopped) = oneshot::channel();
    let run_dir = run(take_over(&path, Duration::from_secs(1), &mut stopped)).unwrap().unwrap();
    assert!(matches!(RunDir::take(&path), Err(RunDirError::Taken { .. })));
    drop(run_dir);
    RunDir::take(&path).unwrap();
}

/// One of two takes it; the other one goes on waiting, and takes it afterwards.
#[test]
fn two_wait_and_take_turns() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let first = RunDir::take(path).unwrap();
    run(async {
        let (_stop_one, mut one) = waiting(path);
        let (_stop_other, mut other) = waiting(path);
        until_blocked(&path.join("lock"), 2).await;
        assert!(!one.is_finished() && !other.is_finished());
        drop(first);
        let (holder, rest) = tokio::select! {
            taken = &mut one => (taken, other),
            taken = &mut other => (taken, one),
        };
        let holder = holder.unwrap().unwrap().unwrap();
        until_blocked(&path.join("lock"), 1).await;
        assert!(!rest.is_finished());
        drop(holder);
        rest.await.unwrap().unwrap().unwrap();
    });
}

/// What the holder has is not touched by one that waits, is stopped, or waits in vain.
#[test]
fn a_wait_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let first = RunDir::take(path).unwrap();
    first.save(&super::super::State::default()).unwrap();
    let before = contents(path);
    run(async {
        let (stop, wait) = waiting(path);
        until_blocked(&path.join("lock"), 1).await;
        stop.send(()).unwrap();
        assert!(wait.await.unwrap().unwrap().is_none());
        let (_stop, mut stopped) = oneshot::channel();
        let fault = take_over(path, Duration::from_millis(50), &mut stopped).await.unwrap_err().to_string();
        assert!(fault.contains(&format!("another ktsnd (pid {})", std::process::id())), "{fault}");
    });
    assert_eq!(contents(path), before);
    drop(first);
    // The threads that were left behind let the lock go.
    RunDir::take(path).unwrap();
}

/// A temporary directory goes with its holder: the lock of a removed file would not keep the next one out.
#[test]
fn a_removed_directory_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    let first = RunDir::take(&path).unwrap();
    run(async {
        let (_stop, wait) = waiting(&path);
        until_blocked(&path.join("lock"), 1).await;
        fs::remove_dir_all(&path).unwrap();
        drop(first);
        let _second = wait.await.unwrap().unwrap().unwrap();
        assert!(matches!(RunDir::take(&path), Err(RunDirError::Taken { .. })));
    });
}
