// SPDX-License-Identifier: Apache-2.0
//! Real programs that must not change under the library: what they print and how they end is the kernel's.
//!
//! In: shell scripts, run inside pod A with the library in every process. Out: one cell for each program and mode.
//! A program that is not on this machine is a skip by name; nothing is installed here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ktsn_tests::faults::bed::within;

use crate::languages::{has, must};
use crate::report::Report;
use crate::world::{Mode, World};

/// One program.
struct Row {
    name: &'static str,
    /// Programs that must be on the path.
    needs: &'static [&'static str],
    /// The word in the list of skips.
    missing: &'static str,
    script: &'static str,
}

const fn row(
    name: &'static str,
    needs: &'static [&'static str],
    missing: &'static str,
    script: &'static str,
) -> Row {
    Row { name, needs, missing, script }
}

/// `$W` is a fresh directory, `$S` the folder of sources, `$U` a user program that the harness compiled.
const ROWS: [Row; 10] = [
    row(
        "iperf3_tcp",
        &["iperf3"],
        "",
        "iperf3 -s -1 -B 127.0.0.1 -p 7101 >/dev/null & sleep 0.5
iperf3 -c 127.0.0.1 -p 7101 -n 20M -J >$W/json; echo $?; wait
/usr/bin/python3 -c 'import json,sys; d=json.load(open(sys.argv[1])); e=d[\"end\"]; print(d.get(\"error\"), \
e[\"sum_sent\"][\"bytes\"] >= 20 << 20, e[\"sum_received\"][\"bytes\"] >= 10 << 20)' $W/json",
    ),
    row(
        "iperf3_udp",
        &["iperf3"],
        "",
        "iperf3 -s -1 -B 127.0.0.1 -p 7102 >/dev/null & sleep 0.5
iperf3 -u -c 127.0.0.1 -p 7102 -b 20M -n 1M -l 1000 -J >$W/json; echo $?; wait
/usr/bin/python3 -c 'import json,sys; d=json.load(open(sys.argv[1])); s=d[\"end\"][\"sum\"]; print(d.get(\"error\"), \
s[\"packets\"])' $W/json",
    ),
    row(
        "curl",
        &["curl"],
        "",
        "cd $W; seq 1 400000 >file; /usr/bin/python3 -m http.server --bind 127.0.0.1 7103 >/dev/null 2>&1 & server=$!
trap 'kill $server' EXIT; for n in $(seq 50); do curl -s -o /dev/null http://127.0.0.1:7103/ && break; sleep 0.1; done
curl -s http://127.0.0.1:7103/file | sha256sum; curl -s -o /dev/null -w '%{http_code}\\n' http://127.0.0.1:7103/none
curl -s -r 10-29 http://127.0.0.1:7103/file | wc -c; curl -s http://127.0.0.1:7104/; echo $?",
    ),
    row("python_asyncio", &["python3"], "", "/usr/bin/python3 $S/hello.py"),
    row(
        "socat_tcp",
        &["socat"],
        "",
        "socat TCP-LISTEN:7105,bind=127.0.0.1,reuseaddr EXEC:cat & sleep 0.4
seq 1 300000 | socat -t 5 - TCP:127.0.0.1:7105 | sha256sum; wait; echo $?",
    ),
    row(
        "socat_udp",
        &["socat"],
        "",
        "socat -T 1 UDP-LISTEN:7106,bind=127.0.0.1 EXEC:cat & sleep 0.4
echo hello | socat -t 0.5 - UDP:127.0.0.1:7106; wait; echo $?",
    ),
    row(
        "redis",
        &["redis-cli", "redis-check-rdb"],
        "",
        // Debian's server is this program under another name; its own package would start a service.
        "ln -s $(command -v redis-check-rdb) $W/redis-server
$W/redis-server --port 7107 --bind 127.0.0.1 --save '' --dir $W --daemonize no >/dev/null & server=$!
trap 'kill $server' EXIT; c='redis-cli -p 7107'; for n in $(seq 50); do $c ping >/dev/null 2>&1 && break; sleep 0.1; done
$c set key value; $c get key; for n in 1 2 3; do $c incr n; done; $c rpush list a b c; $c lrange list 0 -1
redis-benchmark -p 7107 -n 2000 -c 20 -t set,get --csv | wc -l; $c dbsize >/dev/null; $c get none",
    ),
    row("node", &["node"], "node_missing", "node $S/hello.js"),
    row("java", &["java", "javac"], "java_missing", "javac -d $W $S/Hello.java && java -cp $W Hello"),
    row("rust", &["rustc"], "", "$U"),
];

/// What the kernel alone showed of a program.
pub(crate) type Recorded = BTreeMap<&'static str, Result<String, String>>;

/// Compiles a Rust program of `programs/` as a user does, with rustc alone, into a directory.
///
/// # Errors
/// When it does not build.
pub(crate) fn rustc(root: &Path, name: &str, directory: &Path) -> anyhow::Result<PathBuf> {
    let (source, program) = (root.join(format!("tests/programs/{name}.rs")), directory.join(name));
    must(Command::new("rustc").args(["-O", "--edition", "2024", "-o"]).arg(&program).arg(source))?;
    Ok(program)
}

/// Runs all rows whose cells contain `filter`. What the kernel shows is recorded once.
///
/// # Errors
/// When the one program that is compiled here does not build.
pub(crate) fn run(
    world: &mut World,
    root: &Path,
    filter: &str,
    recorded: &mut Recorded,
    report: &mut Report,
) -> anyhow::Result<()> {
    let directory = ktsn_tests::hook::open_directory();
    let sources = root.join("tests/programs");
    let user = rustc(root, "hello", directory.path())?;
    for row in &ROWS {
        let cells = [Mode::Library, Mode::Daemon]
            .map(|mode| (mode, world.cell(&format!("program/{}/{}", row.name, mode.name()))));
        let wanted: Vec<_> = cells.into_iter().filter(|(_, cell)| cell.contains(filter)).collect();
        if wanted.is_empty() {
            continue;
        }
        if let Some(absent) = row.needs.iter().find(|program| !has(program)) {
            for (_, cell) in wanted {
                report.skip(&cell, row.missing, &format!("no {absent} on this machine"));
            }
            continue;
        }
        let mut once = |mode| one(world, row, &sources, &user, mode).map_err(|error| format!("{error:#}"));
        let kernel = recorded.entry(row.name).or_insert_with(|| once(Mode::Kernel)).clone();
        for (mode, cell) in wanted {
            let result = match (&kernel, once(mode)) {
                (Ok(kernel), Ok(seen)) if seen == *kernel && kernel.contains("exit status: 0") => Ok(()),
                (kernel, seen) => Err(format!("{seen:?} instead of {kernel:?}")),
            };
            report.add(&cell, result);
        }
    }
    Ok(())
}

/// Output and exit status of one run.
fn one(world: &mut World, row: &Row, sources: &Path, user: &Path, mode: Mode) -> anyhow::Result<String> {
    let place = ktsn_tests::hook::open_directory();
    let mut command = Command::new("timeout");
    command.args(["--kill-after=1", "60", "bash", "-c", row.script]).stdin(Stdio::null());
    command.env("W", place.path()).env("S", sources).env("U", user);
    world.prepare(&mut command, mode);
    let pod = world.bed().pod_a.clone();
    let output = within(&pod, || command.output())?;
    let text = format!(
        "{}{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
        output.status
    );
    Ok(text)
}
