// SPDX-License-Identifier: Apache-2.0
//! `ktsn rt run` with guests: their records go with the run, and a run that can measure nothing says why. No time is judged.

use std::path::Path;
use std::process::{Command, Stdio};

use ktsn_eventually::eventually;
use ktsn_tests::cli::{err, folder, ktsn, out};

use serde_json::Value;

use super::{Cache, LONG, image_of, skip};

/// A short `ktsn rt run` in `place`, whose lock no other measurement holds.
fn rt(program: Command, place: &Path, arguments: &[&str]) -> Command {
    let mut command = program;
    command.current_dir(place).args(["rt", "run", "--duration=200ms", "--workers=2", "--worker-mib=8"]);
    command.args(arguments);
    command
}

/// The second end is that of Ctrl-C, while the guests boot or run.
#[test]
fn records_of_guests_and_of_their_neighbours_go_with_the_run() {
    let image = match image_of("uml") {
        Ok(image) => image,
        Err(reason) => return skip(reason),
    };
    let cache = Cache::new(image, true);
    let start = |place: &Path| {
        let place_of_images = format!("--vm-cache={}", cache.0.path().display());
        let mut run = rt(ktsn(), place, &["--system=uml", "--profile=5", &place_of_images]);
        run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let place = tempfile::tempdir().unwrap();
    let output = start(place.path()).wait_with_output().unwrap();
    assert!(output.status.success(), "{}{}", out(&output), err(&output));
    assert_eq!(cache.records(), 0);
    // Behind two loaded neighbours it wakes late, and this machine's counters show the cause.
    let text = std::fs::read(place.path().join("out/rt/rt.json")).unwrap();
    let document: Value = serde_json::from_slice(&text).unwrap();
    let cell = &document["realtime"]["cells"][0];
    let causes = cell["causes"].as_array().unwrap();
    assert!(cell["excursions"].as_u64() > Some(0) && !causes.is_empty(), "{cell}");

    let place = tempfile::tempdir().unwrap();
    let run = start(place.path());
    let what = std::fmt::from_fn(|f| write!(f, "{} of three guests run", cache.records()));
    // Two neighbours and the guest of the probe.
    eventually(what, LONG, || cache.records() >= 3);
    assert!(Command::new("kill").args(["-INT", &run.id().to_string()]).status().unwrap().success());
    let output = run.wait_with_output().unwrap();
    assert!(!output.status.success() && err(&output).contains("stopped by a signal"), "{output:?}");
    assert_eq!(cache.records(), 0);
}

#[test]
fn a_run_that_can_measure_nothing_names_each_systems_reason() {
    let place = tempfile::tempdir().unwrap();
    // ktsn and the laboratory alone, without what guests get; and a source tree that has no builder.
    let alone = tempfile::tempdir_in(folder()).unwrap();
    let program = alone.path().join("ktsn");
    for name in ["ktsn", "ktsn-bench"] {
        std::fs::hard_link(folder().join(name), alone.path().join(name)).unwrap();
    }
    let mut command = Command::new(&program);
    command.env_remove("KTSN_LIB");
    let arguments = ["--system=uml,qemu,rtos", "--profile=1,3"];
    let output = rt(command, place.path(), &arguments).output().unwrap();
    let said = err(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    let error = said.split_once("nothing can be measured here:\n").map_or("", |(_, error)| error);
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    for (line, [system, reason]) in lines.iter().zip([
        ["  uml: ", "ktsnd is not at "],
        ["  qemu: ", "`make build` puts it beside ktsn (guest_missing)"],
        ["  rtos: ", "probe.py does not exist"],
    ]) {
        assert!(line.starts_with(system) && line.contains(reason), "{said}");
        assert!(line.matches("`make build`").count() <= 1, "{said}");
    }
    assert!(!place.path().join("out/rt/rt.json").exists());
}
