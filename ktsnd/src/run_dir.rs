// SPDX-License-Identifier: Apache-2.0
//! RUN_DIR: lock, sockets' places, and the attachments and schedules to take up again after a restart.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::config::{RawAttachment, RawVxlanPeer};

/// Why a run directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// It cannot be made or written.
    #[error("run directory {}: {error}; give another one with --run-dir or KTSN_RUN_DIR", path.display())]
    Io {
        /// The path at fault.
        path: PathBuf,
        /// The kernel's answer.
        error: io::Error,
    },
    /// Another daemon uses it.
    #[error("run directory {}: another ktsnd ({holder}) uses it; stop that one or give another --run-dir", path.display())]
    Taken {
        /// The directory.
        path: PathBuf,
        /// What the lock file says about the other one.
        holder: String,
    },
}

/// What is taken up again after a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Attachments that came by the control API.
    #[serde(default)]
    pub attachments: Vec<RawAttachment>,
    /// Gate schedules that came by it.
    #[serde(default)]
    pub schedules: Vec<KeptSchedule>,
    /// Overlay peers that came by it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<KeptPeers>,
}

/// The overlay peers of one attachment or of one VNI.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct KeptPeers {
    /// The attachment's name; none: the VNI's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attachment: Option<String>,
    /// The VNI, where no attachment is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vni: Option<u32>,
    /// As they came.
    pub peers: Vec<RawVxlanPeer>,
}

/// The gate schedule of one port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct KeptSchedule {
    /// The device.
    pub port: String,
    /// What was applied, as `ktsn_schedule` writes it.
    pub schedule: serde_json::Value,
}

/// The highest form of the file that is read. It goes up when an older ktsnd would misread it.
const VERSION: u64 = 2;

/// The form in which a state is written: 2 with overlay peers, else 1, so that an older ktsnd reads what it knows.
fn form_of(state: &State) -> u64 {
    if state.peers.is_empty() { 1 } else { 2 }
}

/// The file's contents as they are written, at each attachment: nothing is copied for it.
#[derive(Serialize)]
struct Written<'a> {
    version: u64,
    #[serde(flatten)]
    state: &'a State,
}

/// Why a state file is not used.
#[derive(Debug, thiserror::Error)]
enum StateError {
    #[error(
        "it has form {0}, this ktsnd reads up to {VERSION}: a newer ktsnd wrote it; run that one with it, or attach again"
    )]
    Newer(u64),
    #[error("{0}")]
    Damaged(#[from] serde_json::Error),
}

impl StateError {
    /// The name under which the file is set aside.
    fn aside(&self) -> &'static str {
        match self {
            Self::Newer(_) => "state.json.newer",
            Self::Damaged(_) => "state.json.damaged",
        }
    }
}

/// The file's contents. Without a version they have form 1, or are attachments alone, as ktsnd wrote them at first.
fn read_state(octets: &[u8]) -> Result<State, StateError> {
    let mut value: serde_json::Value = serde_json::from_slice(octets)?;
    if value.is_array() {
        return Ok(State { attachments: serde_json::from_value(value)?, ..State::default() });
    }
    let version = value.as_object_mut().and_then(|fields| fields.remove("version"));
    match version.map(|version| version.as_u64().ok_or(version)) {
        Some(Ok(version)) if version > VERSION => Err(StateError::Newer(version)),
        Some(Err(other)) => {
            let what = format!("version: {other}: expected a number");
            Err(StateError::Damaged(serde::de::Error::custom(what)))
        }
        _ => Ok(serde_json::from_value(value)?),
    }
}

/// An exclusively held run directory.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    _lock: File,
}

impl RunDir {
    /// Makes the directory where missing and locks it.
    ///
    /// # Errors
    /// [`RunDirError`].
    pub fn take(path: &Path) -> Result<Self, RunDirError> {
        let at = |p: PathBuf| move |error| RunDirError::Io { path: p, error };
        let client = path.join("client");
        fs::create_dir_all(&client).map_err(at(client.clone()))?;
        // Clients of any user connect; only we write here.
        for dir in [path, &client] {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).map_err(at(dir.to_owned()))?;
        }
        let lock_path = path.join("lock");
        let mut lock = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(&lock_path)
            .map_err(at(lock_path.clone()))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut holder = String::new();
            let _ = lock.read_to_string(&mut holder);
            return Err(RunDirError::Taken { path: path.to_owned(), holder: holder.trim().to_owned() });
        }
        lock.set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| writeln!(lock, "pid {}", std::process::id()))
            .map_err(at(lock_path))?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// The control socket.
    #[must_use]
    pub fn control_socket(&self) -> PathBuf {
        self.path.join("ktsnd.sock")
    }
    /// The clients' socket.
    #[must_use]
    pub fn client_socket(&self) -> PathBuf {
        self.path.join("client/ktsn.sock")
    }

    /// What was kept. A file that is damaged, or of a newer ktsnd, is set aside, told and not used.
    #[must_use]
    pub fn load(&self) -> (State, Option<String>) {
        let path = self.path.join("state.json");
        let octets = match fs::read(&path) {
            Ok(octets) => octets,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return (State::default(), None),
            Err(error) => return (State::default(), Some(format!("{}: {error}", path.display()))),
        };
        match read_state(&octets) {
            Ok(state) => (state, None),
            Err(error) => {
                let aside = self.path.join(error.aside());
                let where_to = match fs::rename(&path, &aside) {
                    Ok(()) => format!("set aside as {}", aside.display()),
                    Err(why) => format!("it could not be set aside: {why}"),
                };
                (State::default(), Some(format!("{}: {error}; {where_to}", path.display())))
            }
        }
    }

    /// Keeps the state: the old file stays whole until the new one is.
    ///
    /// # Errors
    /// The kernel's, for example a full disk; the old state is still there then.
    pub fn save(&self, state: &State) -> io::Result<()> {
        let new = self.path.join("state.json.new");
        let written = (|| {
            let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(&serde_json::to_vec_pretty(&Written { version: form_of(state), state })?)?;
            file.sync_all()?;
            fs::rename(&new, self.path.join("state.json"))
        })();
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{RawOverlay, RawVxlan};

    #[test]
    fn one_daemon_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        let first = RunDir::take(&path).unwrap();
        let second = RunDir::take(&path).unwrap_err().to_string();
        assert!(second.contains(&format!("pid {}", std::process::id())), "{second}");
        drop(first);
        RunDir::take(&path).unwrap();
    }

    #[test]
    fn state_survives_and_damage_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::take(dir.path()).unwrap();
        assert_eq!(run.load(), (State::default(), None));
        let kept = RawAttachment { name: Some("a".into()), ..RawAttachment::default() };
        let schedule = crate::config::write_schedule(&crate::config::Schedule::default());
        let state = State {
            attachments: vec![kept.clone()],
            schedules: vec![KeptSchedule { port: "eth1".into(), schedule }],
            peers: Vec::new(),
        };
        run.save(&state).unwrap();
        let text = || fs::read_to_string(dir.path().join("state.json")).unwrap();
        assert!(text().contains("\"version\": 1") && !text().contains("peers\""), "an older ktsnd reads it");
        assert_eq!(run.load(), (state.clone(), None));
        let peer = RawVxlanPeer { prefix: Some("10.244.1.0/24".into()), ..RawVxlanPeer::default() };
        let peers = vec![KeptPeers { attachment: None, vni: Some(1), peers: vec![peer] }];
        let state = State { peers, ..state };
        run.save(&state).unwrap();
        assert!(text().contains("\"version\": 2"));
        assert_eq!(run.load(), (state, None));
        // The form that had attachments only.
        fs::write(dir.path().join("state.json"), serde_json::to_string(&[&kept]).unwrap()).unwrap();
        assert_eq!(run.load(), (State { attachments: vec![kept], ..State::default() }, None));
        for damaged in [&b"{"[..], b"", b"\xff\xfe", b"{\"attachments\":[],\"later\":1}"] {
            fs::write(dir.path().join("state.json"), damaged).unwrap();
            let (none, warning) = run.load();
            assert!(none == State::default() && warning.is_some());
            assert_eq!(fs::read(dir.path().join("state.json.damaged")).unwrap(), damaged);
            assert_eq!(run.load(), (State::default(), None));
        }
    }

    /// A network as tsn-cni attaches it: what nobody gave is not written, and a file that says `null` is read as before.
    #[test]
    fn two_hundred_attachments_are_written_without_what_is_default() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::take(dir.path()).unwrap();
        let attachment = |number| RawAttachment {
            name: Some(format!("default/talker-{number}/net1")),
            netns: Some(format!("/run/netns/cni-{number}")),
            interface: Some("net1".into()),
            uplink: Some("eth1".into()),
            overlay: Some(RawOverlay::Vxlan(Box::new(RawVxlan {
                device: Some("flannel.1".into()),
                peers: vec![RawVxlanPeer { prefix: Some("10.244.1.0/24".into()), ..RawVxlanPeer::default() }],
                ..RawVxlan::default()
            }))),
            ..RawAttachment::default()
        };
        let state = State { attachments: (0..200).map(attachment).collect(), ..State::default() };
        run.save(&state).unwrap();
        let path = dir.path().join("state.json");
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("null"), "{}", &text[..1000]);
        assert_eq!(run.load(), (state.clone(), None));
        let mut older: serde_json::Value = serde_json::from_str(&text).unwrap();
        for attachment in older["attachments"].as_array_mut().unwrap() {
            for field in ["destinations", "classes", "take", "vlan", "octets_max"] {
                attachment[field] = serde_json::Value::Null;
            }
            for field in ["mode", "vni", "flood", "ttl"] {
                attachment["overlay"]["vxlan"][field] = serde_json::Value::Null;
            }
            attachment["overlay"]["vxlan"]["peers"][0]["mac"] = serde_json::Value::Null;
        }
        fs::write(&path, older.to_string()).unwrap();
        assert_eq!(run.load(), (state, None));
    }

    /// Going back to an older ktsnd loses nothing in silence: the newer one's file stays, under another name.
    #[test]
    fn the_state_of_a_newer_ktsnd_is_told_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::take(dir.path()).unwrap();
        let path = dir.path().join("state.json");
        let newer = b"{\"version\":3,\"attachments\":[{\"name\":\"a\"}],\"later\":[]}";
        fs::write(&path, newer).unwrap();
        let (none, warning) = run.load();
        let warning = warning.unwrap();
        assert_eq!(none, State::default());
        for part in ["state.json: it has form 3", "reads up to 2", "newer ktsnd", "state.json.newer"] {
            assert!(warning.contains(part), "{warning}");
        }
        assert_eq!(fs::read(dir.path().join("state.json.newer")).unwrap(), newer);
        assert_eq!(run.load(), (State::default(), None));
        // What this one writes says its form; without one it is the first.
        run.save(&State::default()).unwrap();
        assert!(fs::read_to_string(&path).unwrap().contains("\"version\": 1"));
        fs::write(&path, b"{\"attachments\":[]}").unwrap();
        assert_eq!(run.load(), (State::default(), None));
        // A field that nobody knows is named.
        fs::write(&path, b"{\"attachments\":[],\"later\":1}").unwrap();
        assert!(run.load().1.unwrap().contains("unknown field `later`"));
    }

    #[test]
    fn a_file_in_the_way_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let error = RunDir::take(&file).unwrap_err().to_string();
        assert!(error.contains("--run-dir"), "{error}");
    }
}
