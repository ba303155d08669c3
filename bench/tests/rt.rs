// SPDX-License-Identifier: Apache-2.0
//! `ktsn rt` as a user runs it. In: root's rights, `cyclictest`. Out: a run that is killed again and again ends with every latency that was
//! recorded, each once; its files can be compared.

use ktsn_eventually::eventually;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// `ktsn rt WORDS` where the machine's measuring lock is.
fn ktsn(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ktsn-bench"));
    command.arg("rt").args(words).current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    command.stdin(Stdio::null());
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The latencies in a file of records, in order, by a reader of this test's own. A cut line at the end is left out.
fn latencies(file: &Path) -> Vec<u64> {
    let text = String::from_utf8_lossy(&std::fs::read(file).unwrap_or_default()).into_owned();
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let mut latencies = Vec::new();
    for line in whole {
        let json = line.splitn(3, ' ').nth(2).unwrap();
        let record: serde_json::Value = serde_json::from_str(json).unwrap();
        let samples = record["samples"]["ns"].as_array().into_iter().flatten();
        latencies.extend(samples.map(|latency| latency.as_u64().unwrap()));
    }
    latencies
}

#[test]
fn a_killed_run_goes_on_without_losing_or_repeating_a_latency() {
    let out = tempfile::tempdir().unwrap();
    let folder = out.path().to_str().unwrap();
    let mut words = vec!["run", "--profile", "1", "--duration", "1500ms", "--period", "1ms", "--out", folder];
    let records = out.path().join("records/host-1.rt");
    let mut seen: Vec<u64> = Vec::new();
    // Killed at other instants of its work each time.
    for wanted in [1, 150, 400] {
        let mut run = ktsn(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        eventually("latencies come", Duration::from_secs(300), || {
            assert!(run.try_wait().unwrap().is_none(), "the run has ended");
            latencies(&records).len() >= seen.len() + wanted
        });
        run.kill().unwrap();
        run.wait().unwrap();
        let now = latencies(&records);
        assert!(
            now.starts_with(&seen) && now.len() > seen.len() && now.len() < 1500,
            "{} {}",
            now.len(),
            seen.len()
        );
        seen = now;
        if words.last() != Some(&"--resume") {
            // Without the word, what is there is not written over.
            let refused = ktsn(&words).output().unwrap();
            assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
            assert!(text(&refused).contains("--resume"), "{}", text(&refused));
            words.push("--resume");
        }
    }
    let ended = ktsn(&words).output().unwrap();
    assert!(ended.status.success(), "{}", text(&ended));
    let all = latencies(&records);
    assert!(all.starts_with(&seen));
    assert_eq!(all.len(), 1500);
    let shown = text(&ended);
    assert!(shown.contains("after 1.5 s a cell: PASS and TIGHT mean not unfit so far"), "{shown}");
    let json = std::fs::read_to_string(out.path().join("rt.json")).unwrap();
    let document: serde_json::Value = serde_json::from_str(&json).unwrap();
    let cell = &document["realtime"]["cells"][0];
    assert_eq!((&cell["statistics"]["samples"], &cell["segments"]), (&1500.into(), &4.into()));
    assert_eq!(cell["statistics"]["max_ns"], *all.iter().max().unwrap());
    let page = std::fs::read_to_string(out.path().join("rt.html")).unwrap();
    assert!(page.len() < 10 << 20 && page.find("id=\"d0-rt-verdicts\"") < page.find("id=\"d0-rt-boxes\""));
    // A file against itself: no difference.
    let file = out.path().join("rt.json").display().to_string();
    let compared = ktsn(&["compare", &file, &file]).output().unwrap();
    assert_eq!(compared.status.code(), Some(0), "{}", text(&compared));
    assert!(text(&compared).contains("no difference shown"), "{}", text(&compared));
}

#[test]
fn without_the_probe_nothing_begins() {
    let out = tempfile::tempdir().unwrap();
    let words = ["run", "--profile", "1", "--duration", "1s", "--out", out.path().to_str().unwrap()];
    let output = ktsn(&words).env("PATH", "/nowhere").output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    assert!(text(&output).contains("cyclictest") && text(&output).contains("rt-tests"), "{}", text(&output));
    assert!(!out.path().join("records/host-1.rt").exists());
}

/// A program's stand-in, in front of the others.
fn instead(programs: &Path, name: &str, script: &str) -> String {
    ktsn_eventually::make_program(&programs.join(name), script.as_bytes());
    format!("{}:{}", programs.display(), std::env::var("PATH").unwrap())
}

/// A load that ends before the probe: what was measured without it is not there when the run goes on.
#[test]
fn a_latency_that_was_measured_without_the_load_does_not_count() {
    for (system, said) in
        [("container", "the load beside the probe ended"), ("host", "load ended while the probe ran")]
    {
        let (out, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = instead(programs.path(), "stress", "#!/bin/sh\nexec sleep 1.5\n");
        let folder = out.path().to_str().unwrap();
        let words = ["run", "--system", system, "--profile", "3", "--period", "1ms", "--duration", "4s"];
        let words = [&words[..], &["--workers", "2", "--worker-mib", "8", "--out", folder]].concat();
        let records = out.path().join(format!("records/{system}-3.rt"));
        let mut counted = 0;
        for more in [&[][..], &["--resume"]] {
            let ended = ktsn(&[&words, more].concat()).env("PATH", &path).output().unwrap();
            assert_eq!(ended.status.code(), Some(1), "{}", text(&ended));
            assert!(text(&ended).contains(said), "{}", text(&ended));
            counted = latencies(&records).len();
            assert!(counted < 3900, "{counted} latencies beside a load of at most twice 1.5 s");
        }
        let ended = ktsn(&[&words[..], &["--resume"]].concat()).output().unwrap();
        assert!(ended.status.success(), "{}", text(&ended));
        assert_eq!(latencies(&records).len(), 4000, "after {counted}");
    }
}

#[test]
fn a_load_that_never_begins_ends_the_run() {
    let (out, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = instead(programs.path(), "fio", "#!/bin/sh\necho O_DIRECT is refused >&2; exit 1\n");
    let words = ["run", "--profile", "8", "--duration", "1s", "--out", out.path().to_str().unwrap()];
    let ended = ktsn(&words).env("PATH", path).output().unwrap();
    let said = text(&ended);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    // Both neighbours' loads are fio: whichever ended is seen first.
    let ends = ["a", "b"].map(|name| format!("neighbour-{name} ended before its load began"));
    assert!(ends.iter().any(|name| said.contains(name)) && said.contains("O_DIRECT is refused"), "{said}");
    assert_eq!(latencies(&out.path().join("records/host-8.rt")), [0; 0]);
}

/// A `cyclictest` that writes as many latencies as it is asked for, at once: from a microsecond to a second, so that histograms get as large
/// as they can.
const FAST_PROBE: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do [ "$1" = -l ] && loops=$2; shift; done
exec awk -v loops="$loops" 'BEGIN { srand(7); for (i = 0; i < loops; i++) printf " 0: %d: %d\n", i, exp(7 + 14 * rand() ^ 4) }'
"#;

/// The most memory that a process had so far, in KiB.
fn peak_kib(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Eighty minutes in eight slices, for two cells, as fast as they can be read: the runner's memory does not grow after its first quarter.
#[test]
fn a_long_run_needs_no_more_memory_than_a_short_one() {
    let (out, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = instead(programs.path(), "cyclictest", FAST_PROBE);
    let folder = out.path().to_str().unwrap();
    let words = ["run", "--profile", "1,2", "--duration", "80m", "--excursion", "10ms", "--out", folder];
    let mut run = ktsn(&words).env("PATH", path).stdout(Stdio::null()).spawn().unwrap();
    let recorded = || {
        ["records/host-1.rt", "records/host-2.rt"]
            .map(|name| std::fs::metadata(out.path().join(name)).map_or(0, |metadata| metadata.len()))
            .iter()
            .sum::<u64>()
    };
    let mut seen: Vec<(u64, u64)> = Vec::new();
    let status = eventually("the run ends", Duration::from_secs(600), || {
        seen.extend(peak_kib(run.id()).map(|peak| (recorded(), peak)));
        run.try_wait().unwrap()
    });
    assert!(status.success());
    let all = recorded();
    let text = std::fs::read_to_string(out.path().join("rt.json")).unwrap();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    for cell in document["realtime"]["cells"].as_array().unwrap() {
        assert_eq!((&cell["statistics"]["samples"], &cell["segments"]), (&480_000.into(), &8.into()));
    }
    // While it measures; results and report are made when all records are there.
    let at = |share: f64| {
        seen.iter().filter(|(octets, _)| *octets as f64 <= all as f64 * share).map(|(_, peak)| *peak).max()
    };
    let (quarter, end) = (at(0.25).unwrap(), at(0.99).unwrap());
    assert!(end < quarter + 4 * 1024, "{quarter} KiB after a quarter, {end} KiB at the end");
    let most = seen.iter().map(|(_, peak)| *peak).max().unwrap();
    assert!(most < 50 * 1024, "{most} KiB");
    assert!(std::fs::metadata(out.path().join("rt.html")).unwrap().len() < 10 << 20);
}
