// SPDX-License-Identifier: Apache-2.0
//! `ktsn debug bundle`: one archive for the people who look into a fault.
//!
//! In: this machine and its ktsnd. Out: a tar.gz file that only its owner can read, with the members that `contents.json` in it lists. What
//! cannot be had is named there with the reason, and the archive is made none the less. Never in it: payloads and shared memory, processes'
//! environments and memory, keys of the kernel, values of what is called after a secret.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::fs::OFlags;
use serde_json::{Value, json};

use super::{facts, redact};
use crate::cmd::{doctor, status};
use crate::files::open_regular;
use crate::{control, output};

/// No member is longer.
const MEMBER_MAX: u64 = 8 << 20;
/// Lines of the journal.
const LINES_MAX: &str = "5000";
/// The longest wait for the journal.
const JOURNAL_MAX: Duration = Duration::from_secs(20);

const HELP: &str = "\
Examples:
  ktsn debug bundle
  ktsn debug bundle -o bundle.tar.gz && tar -xOzf bundle.tar.gz ktsn-bundle/contents.json

It has ktsnd's configuration, state, counters and status, doctor's findings, facts about the kernel and the
network devices, and ktsnd's last log lines (from the journal). It has no payloads, and no values of settings
that are called after a secret. It has names and addresses of interfaces and pods: look into it before you
pass it on.

Exit status: 0 written (contents.json says what could not be had); 1 the file cannot be written; 2 wrong usage.";

/// Write one archive with configuration, state, counters, findings, kernel facts and logs.
#[derive(Args, Clone, Debug)]
#[command(after_help = HELP)]
pub(crate) struct BundleArgs {
    /// Where to write; a file that is there is not replaced [default: ktsn-bundle-TIME.tar.gz]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// ktsnd's configuration file
    #[arg(long, value_name = "FILE", default_value = "/etc/ktsn/ktsnd.toml")]
    config: PathBuf,
    /// Directory of the ktsnd to look at [default: KTSN_RUN_DIR, else /run/ktsn]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
}

/// Writes the archive.
pub(crate) fn run(args: &BundleArgs) -> ExitCode {
    let run_dir = match control::run_dir(args.run_dir.as_deref()) {
        Ok(run_dir) => run_dir,
        Err(error) => {
            eprintln!("ktsn debug bundle: --run-dir: {error}");
            return ExitCode::from(2);
        }
    };
    output::finish("debug bundle", make(args, &run_dir))
}

fn make(args: &BundleArgs, run_dir: &Path) -> Result<(), String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let file = args.output.clone().unwrap_or_else(|| format!("ktsn-bundle-{}.tar.gz", now.as_secs()).into());
    // Before anything is asked: a wrong place is known at once.
    let out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file);
    let out = out.map_err(|error| format!("{}: {error}; name a new file with --output", file.display()))?;
    let members = collect(args, run_dir, now);
    if let Err(error) = write(out, &members, now) {
        let _ = fs::remove_file(&file);
        return Err(format!("{}: {error}; write to another place with --output", file.display()));
    }
    let mut text = format!("{}\n", file.display());
    for member in &members {
        let what = member
            .data
            .as_ref()
            .map_or_else(|why| format!("not there: {why}"), |data| format!("{} octets", data.len()));
        text.push_str(&format!("  {:24} {what}\n", member.name));
    }
    text.push_str("Look into it before you pass it on: it names interfaces, pods and addresses.\n");
    output::show(&text).map(drop)
}

/// A member of the archive, or why it is missing.
struct Member {
    name: &'static str,
    data: Result<Vec<u8>, String>,
}

impl Member {
    fn json(name: &'static str, value: Result<Value, String>) -> Self {
        let data = value.map(|mut value| {
            redact::json(&mut value);
            format!("{value:#}\n").into_bytes()
        });
        Self { name, data }
    }

    fn text(name: &'static str, text: Result<String, String>) -> Self {
        Self { name, data: text.map(|text| redact::text(&text).into_bytes()) }
    }
}

fn collect(args: &BundleArgs, run_dir: &Path, now: Duration) -> Vec<Member> {
    let kept = |name: &str| {
        let text = read(&run_dir.join(name))?;
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", run_dir.join(name).display()))
    };
    let mut members = vec![
        Member::text("configuration.toml", read(&args.config)),
        Member::json("state.json", kept("state.json")),
        Member::json("counters.json", kept("counters.json")),
        Member::json("status.json", status::document(run_dir)),
        Member::json("doctor.json", Ok(doctor::document(run_dir))),
        Member::json("kernel.json", Ok(facts::kernel())),
        Member::json("devices.json", Ok(facts::devices())),
        Member::text("tables.txt", Ok(tables())),
        Member::text("log.txt", log(run_dir)),
    ];
    let contents = contents(run_dir, &members, now);
    members.insert(0, Member::json("contents.json", Ok(contents)));
    members
}

/// The archive's own description.
fn contents(run_dir: &Path, members: &[Member], now: Duration) -> Value {
    let described = members.iter().map(|member| match &member.data {
        Ok(data) => json!({ "name": member.name, "octets": data.len() }),
        Err(why) => json!({ "name": member.name, "missing": why }),
    });
    json!({
        "ktsn": env!("CARGO_PKG_VERSION"),
        "unix_seconds": now.as_secs(),
        "run_dir": run_dir.to_string_lossy(),
        "members": described.collect::<Vec<_>>(),
    })
}

/// A text file; its end if it is too long. Only ordinary files: a pipe in its place would be waited for.
fn read(path: &Path) -> Result<String, String> {
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let mut file = open_regular(path, OFlags::NOFOLLOW).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    let mut data = Vec::new();
    file.seek(SeekFrom::Start(about.len().saturating_sub(MEMBER_MAX))).map_err(failed)?;
    file.take(MEMBER_MAX).read_to_end(&mut data).map_err(failed)?;
    Ok(String::from_utf8_lossy(&data).into_owned())
}

fn tables() -> String {
    let mut text = String::new();
    for path in facts::TABLES {
        let table = fs::read_to_string(path).unwrap_or_else(|error| format!("{error}\n"));
        text.push_str(&format!("== {path}\n{table}\n"));
    }
    text
}

/// What ktsnd logged: into its run directory beside `ktsn run`, else into the journal.
fn log(run_dir: &Path) -> Result<String, String> {
    let file = run_dir.join("ktsnd.log");
    if file.exists() { read(&file) } else { journal() }
}

/// ktsnd's last lines of the journal.
fn journal() -> Result<String, String> {
    let words =
        ["--unit=ktsnd.service", "--lines", LINES_MAX, "--no-pager", "--quiet", "--output=short-iso-precise"];
    let mut child = Command::new("journalctl")
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("journalctl: {error}"))?;
    let mut out = child.stdout.take().ok_or("journalctl: no output")?;
    let reader = std::thread::spawn(move || {
        let mut data = Vec::new();
        out.by_ref().take(MEMBER_MAX).read_to_end(&mut data).map(|_| data)
    });
    let begin = std::time::Instant::now();
    while !reader.is_finished() && begin.elapsed() < JOURNAL_MAX {
        std::thread::sleep(Duration::from_millis(10));
    }
    let is_late = !reader.is_finished();
    let _ = child.kill();
    let _ = child.wait();
    if is_late {
        return Err(format!("journalctl: no answer within {} s", JOURNAL_MAX.as_secs()));
    }
    let data = reader
        .join()
        .map_err(|_| "journalctl: reading failed")?
        .map_err(|error| format!("journalctl: {error}"))?;
    if data.is_empty() {
        return Err("the journal has no line of ktsnd.service".to_owned());
    }
    Ok(String::from_utf8_lossy(&data).into_owned())
}

fn write(out: File, members: &[Member], now: Duration) -> io::Result<()> {
    let mut archive = tar::Builder::new(GzEncoder::new(out, Compression::default()));
    for member in members {
        let Ok(data) = &member.data else { continue };
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(now.as_secs());
        archive.append_data(&mut header, format!("ktsn-bundle/{}", member.name), data.as_slice())?;
    }
    let mut out = archive.into_inner()?.finish()?;
    out.flush()?;
    out.sync_all()
}
