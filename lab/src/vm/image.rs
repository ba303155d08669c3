// SPDX-License-Identifier: Apache-2.0
//! Images of guests: a kernel and a file tree, from Debian packages alone.
//!
//! In: the packages in the cache, which `scripts/fetch-packages.sh` fetches when there are none. Out: an [`Image`]: files whose octets depend
//! on the packages and on this code only, under a name that is a checksum of both, each checked against its own checksum before use. An
//! image is made beside its place and renamed: a directory of that name is whole. Of the packages' programs only busybox and User-mode
//! Linux run on the host, and nothing is installed there.

use super::cache::{Cache, checksum, checksum_of};
use super::cpio::{Node, Tree};
use super::kind::Kind;
use super::{elf, kernel};
use crate::command;
use crate::error::LabError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Changes whenever this code makes other octets of the same packages.
const RECIPE: u32 = 1;
const FETCH: &str = include_str!("../../../scripts/fetch-packages.sh");
/// Programs of the guest besides busybox's, each with its libraries.
const PROGRAMS: [&str; 9] = [
    "bin/dash",
    "sbin/tc",
    "bin/ip",
    "sbin/bridge",
    "sbin/ethtool",
    "usr/sbin/chronyd",
    "usr/bin/chronyc",
    "usr/bin/cyclictest",
    // What ktsn and ktsnd are linked against besides libc.
    "lib/x86_64-linux-gnu/libgcc_s.so.1",
];
/// Libraries that nothing names: those of programs that come with each run.
const LIBRARIES: [&str; 2] = ["libm.so.6", "ld-linux-x86-64.so.2"];
const LIBRARY_DIRECTORIES: [&str; 2] = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"];
/// busybox's own names for what the packages above do better. Its shell would run its own `ip` and `tc` whatever lies on the search path.
const NOT_BUSYBOX: [&str; 3] = ["ip", "sh", "tc"];

/// What an image is made of, as its file `image.json` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// The kernel's version.
    pub kernel: String,
    /// The packages' files.
    pub packages: Vec<String>,
    /// SHA-256 of each file.
    pub checksums: BTreeMap<String, String>,
}

/// An image in the cache. The cache stays locked while the value lives.
#[derive(Debug)]
pub struct Image {
    /// What guests of it are.
    pub kind: Kind,
    /// Checksum of what the image is made of.
    pub key: String,
    /// What the image is made of.
    pub facts: Facts,
    /// Where its files are.
    pub directory: PathBuf,
    _lock: File,
}

impl Image {
    /// The kernel.
    #[must_use]
    pub fn kernel(&self) -> PathBuf {
        self.directory.join("kernel")
    }

    /// The file tree, as an archive.
    #[must_use]
    pub fn files(&self) -> PathBuf {
        self.directory.join("files.cpio")
    }
}

/// What to do about what the cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renew {
    /// Use what is there.
    Nothing,
    /// Build the image again from the packages that are there.
    Image,
    /// Fetch the packages again, too.
    Packages,
}

/// The image in the cache; it is made if it is not there or damaged. `watch` gets each step.
///
/// # Errors
/// [`LabError::Impossible`] if the machine lacks a tool or a package; a full disk; the caller was asked to stop.
pub fn image(
    cache: &Cache,
    kind: Kind,
    renew: Renew,
    watch: &mut dyn FnMut(&str),
) -> Result<Image, LabError> {
    if std::env::consts::ARCH != "x86_64" {
        return Err(impossible("guests exist for x86-64 only", "use an x86-64 machine"));
    }
    if renew == Renew::Nothing {
        let lock = cache.lock(false, &mut || watch("another ktsn makes the image"))?;
        match read(cache, kind) {
            Ok(Some((key, facts))) => {
                let directory = cache.images(kind).join(&key);
                return Ok(Image { kind, directory, key, facts, _lock: lock });
            }
            Ok(None) => {}
            Err(damage) => watch(&format!("{damage}: building the image again")),
        }
    }
    let lock = cache.lock(true, &mut || watch("another ktsn uses the cache"))?;
    // Another process may have made it meanwhile.
    let made = if renew == Renew::Nothing { read(cache, kind).ok().flatten() } else { None };
    let (key, facts) = match made {
        Some(made) => made,
        None => build(cache, kind, renew, watch)?,
    };
    // From now on others may read.
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockShared)
        .map_err(|error| LabError::system("flock")(error.into()))?;
    Ok(Image { kind, directory: cache.images(kind).join(&key), key, facts, _lock: lock })
}

fn impossible(what: impl Into<String>, remedy: &str) -> LabError {
    LabError::Impossible { what: what.into(), remedy: remedy.to_owned() }
}

fn damaged(path: &Path, problem: impl Into<String>) -> LabError {
    LabError::Contents { path: path.to_owned(), problem: problem.into() }
}

/// The name of the image that the packages give; `None` without packages.
pub(super) fn key(cache: &Cache, kind: Kind) -> Option<String> {
    let list = std::fs::read_to_string(cache.packages(kind).join("list")).ok()?;
    if !is_requested(&cache.packages(kind), kind) {
        return None;
    }
    Some(checksum_of(&format!("{RECIPE}\n{list}"))[..32].to_owned())
}

/// Reads an image and checks its files.
///
/// # Errors
/// How it is damaged.
pub(super) fn read(cache: &Cache, kind: Kind) -> Result<Option<(String, Facts)>, LabError> {
    let Some(key) = key(cache, kind) else { return Ok(None) };
    let directory = cache.images(kind).join(&key);
    if !directory.exists() {
        return Ok(None);
    }
    let path = directory.join("image.json");
    let text = std::fs::read_to_string(&path).map_err(LabError::file(&path))?;
    let facts: Facts = serde_json::from_str(&text).map_err(|error| damaged(&path, error.to_string()))?;
    for name in ["kernel", "files.cpio"] {
        let path = directory.join(name);
        let found = checksum(&path).map_err(LabError::file(&path))?;
        if facts.checksums.get(name) != Some(&found) {
            return Err(damaged(&path, "its checksum is not that in image.json"));
        }
    }
    Ok(Some((key, facts)))
}

/// Makes the image. The cache is locked.
fn build(
    cache: &Cache,
    kind: Kind,
    renew: Renew,
    watch: &mut dyn FnMut(&str),
) -> Result<(String, Facts), LabError> {
    let packages = packages(cache, kind, renew, watch)?;
    let directory = cache.packages(kind);
    let key = key(cache, kind).ok_or_else(|| damaged(&directory, "no list of packages in it"))?;
    let images = cache.images(kind);
    std::fs::create_dir_all(&images).map_err(LabError::file(&images))?;
    let work =
        tempfile::Builder::new().prefix(".making-").tempdir_in(&images).map_err(LabError::file(&images))?;
    let (root, made) = (work.path().join("root"), work.path().join("image"));
    for directory in [&root, &made] {
        std::fs::create_dir(directory).map_err(LabError::file(directory))?;
    }
    for (number, package) in packages.iter().enumerate() {
        watch(&format!("unpacking package {} of {}", number + 1, packages.len()));
        unpack(&directory.join(package), &root)?;
    }
    watch("making the image");
    let version = version(&root, kind)?;
    match kind {
        Kind::Qemu => write_kernel(&root, &version, &made.join("kernel"))?,
        Kind::Uml => copy_uml(&root, &made.join("kernel"))?,
    }
    write_files(&root, kind, &version, &made.join("files.cpio"))?;
    let mut facts = Facts { kernel: version, packages, checksums: BTreeMap::new() };
    for name in ["kernel", "files.cpio"] {
        let path = made.join(name);
        facts.checksums.insert(name.to_owned(), checksum(&path).map_err(LabError::file(&path))?);
    }
    let text = serde_json::to_string_pretty(&facts).map_err(|error| damaged(&made, error.to_string()))?;
    create(&made.join("image.json"), &mut |file| file.write_all(text.as_bytes()))?;
    // Older images, a damaged one, and what a killed build left; `work` goes with its value.
    for entry in std::fs::read_dir(&images).map_err(LabError::file(&images))?.flatten() {
        if entry.path() != work.path() && entry.path().is_dir() {
            std::fs::remove_dir_all(entry.path()).map_err(LabError::file(entry.path()))?;
        }
    }
    let place = images.join(&key);
    std::fs::rename(&made, &place).map_err(LabError::file(&place))?;
    Ok((key, facts))
}

/// The packages' files; fetched if they are not there or damaged.
fn packages(
    cache: &Cache,
    kind: Kind,
    renew: Renew,
    watch: &mut dyn FnMut(&str),
) -> Result<Vec<String>, LabError> {
    let directory = cache.packages(kind);
    if renew != Renew::Packages && is_requested(&directory, kind) {
        match listed(&directory) {
            Ok(names) => return Ok(names),
            Err(damage) => watch(&format!("{damage}: fetching the packages again")),
        }
    }
    // What a fetch left that was killed.
    for entry in std::fs::read_dir(&cache.directory).into_iter().flatten().flatten() {
        if is_unfinished(&entry.file_name().to_string_lossy()) {
            std::fs::remove_dir_all(entry.path()).map_err(LabError::file(entry.path()))?;
        }
    }
    watch(&format!("fetching Debian packages (about {} MB)", kind.megabytes()));
    let mut fetch = Command::new("sh");
    fetch
        .args(["-c", FETCH, "fetch-packages"])
        .arg(&directory)
        .arg("amd64")
        .args(kind.packages())
        .stdin(Stdio::null());
    match command::carry_out(fetch, || "fetching Debian packages".to_owned()) {
        Ok(()) => listed(&directory),
        Err(LabError::Command { stderr, .. }) => Err(impossible(
            format!(
                "the guest's packages are not in {} and cannot be fetched: {stderr}",
                directory.display()
            ),
            "use Debian 12 with a reachable mirror and room on the disk, or copy that directory from a machine that has it",
        )),
        Err(error) => Err(error),
    }
}

/// Whether a fetch gives its directory such a name until it ends (mktemp: six letters and digits).
fn is_unfinished(name: &str) -> bool {
    Kind::ALL.into_iter().any(|kind| {
        let rest = name.strip_prefix(&format!("packages{}.new-", kind.suffix()));
        rest.is_some_and(|rest| rest.len() == 6 && rest.chars().all(|letter| letter.is_ascii_alphanumeric()))
    })
}

/// Whether these are the packages of this recipe; an older ktsn may have fetched others.
fn is_requested(directory: &Path, kind: Kind) -> bool {
    std::fs::read_to_string(directory.join("request")).is_ok_and(|request| request == request_line(kind))
}

/// What `request` says.
pub(super) fn request_line(kind: Kind) -> String {
    format!("amd64 {}\n", kind.packages().join(" "))
}

/// The names in the list of packages, after each file was held against its checksum.
pub(super) fn listed(directory: &Path) -> Result<Vec<String>, LabError> {
    let path = directory.join("list");
    let list = std::fs::read_to_string(&path).map_err(LabError::file(&path))?;
    let mut names = Vec::new();
    for line in list.lines() {
        let (sum, name) = line.split_once(' ').ok_or_else(|| damaged(&path, format!("its line {line:?}")))?;
        let name = name.trim();
        let package = directory.join(name);
        if name.contains('/') || checksum(&package).map_err(LabError::file(&package))? != sum {
            return Err(damaged(&package, "its checksum is not that in the list of packages"));
        }
        names.push(name.to_owned());
    }
    Ok(names)
}

fn unpack(package: &Path, root: &Path) -> Result<(), LabError> {
    let mut unpack = Command::new("dpkg-deb");
    unpack.arg("-x").arg(package).arg(root);
    match command::carry_out(unpack, || format!("dpkg-deb -x {} {}", package.display(), root.display())) {
        Err(LabError::Start { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Err(
            impossible("dpkg-deb is not here, which unpacks Debian packages", "use Debian, or install dpkg"),
        ),
        done => done,
    }
}

/// The kernel's version: the directory of its modules.
fn version(root: &Path, kind: Kind) -> Result<String, LabError> {
    let modules = root.join(kind.modules());
    let entries = std::fs::read_dir(&modules)
        .map_err(|_| impossible("no kernel is among the packages", "`ktsn vm image --refresh`"))?;
    let name = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).max();
    name.ok_or_else(|| damaged(&modules, "no kernel in it"))
}

/// Makes a file, and has it on the disk.
fn create(path: &Path, write: &mut dyn FnMut(&mut File) -> std::io::Result<()>) -> Result<(), LabError> {
    let made = File::create(path).and_then(|mut file| {
        write(&mut file)?;
        file.sync_all()
    });
    made.map_err(LabError::file(path))
}

fn write_kernel(root: &Path, version: &str, path: &Path) -> Result<(), LabError> {
    let vmlinuz = root.join("boot").join(format!("vmlinuz-{version}"));
    let image = std::fs::read(&vmlinuz).map_err(LabError::file(&vmlinuz))?;
    let Some(payload) = kernel::xz_payload(&image) else {
        return create(path, &mut |file| file.write_all(&image));
    };
    let packed = root.join("kernel.xz");
    create(&packed, &mut |file| file.write_all(payload))?;
    let kernel = File::create(path).map_err(LabError::file(path))?;
    // The payload ends with the kernel's length, which belongs to no stream.
    let mut xz = Command::new("xz");
    xz.args(["-dc", "--single-stream"]).arg(&packed).stdout(kernel);
    match command::carry_out(xz, || format!("xz -dc {}", packed.display())) {
        Err(LabError::Start { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            Err(impossible("xz is not here, which unpacks the kernel", "apt-get install xz-utils"))
        }
        done => done,
    }
}

/// User-mode Linux is a program, which runs as it is.
fn copy_uml(root: &Path, path: &Path) -> Result<(), LabError> {
    let program = read_file(&root.join("usr/bin/linux.uml"))?;
    create(path, &mut |file| {
        file.set_permissions(std::fs::Permissions::from_mode(0o755))?;
        file.write_all(&program)
    })
}

fn write_files(root: &Path, kind: Kind, version: &str, path: &Path) -> Result<(), LabError> {
    let mut tree = Tree::default();
    for directory in ["dev", "etc", "proc", "root", "run", "sys", "tmp", "usr/lib64", "var/lib/chrony"] {
        tree.add(directory, Node::Directory);
    }
    for name in ["bin", "sbin", "lib", "lib64"] {
        tree.add(name, Node::Link(format!("usr/{name}")));
    }
    tree.add("var/run", Node::Link("../run".to_owned()));
    let text = |text: &str| Node::File(0o644, text.as_bytes().to_vec());
    tree.add("etc/passwd", text("root:x:0:0:root:/root:/bin/sh\n_chrony:x:1:1::/var/lib/chrony:/bin/sh\n"));
    tree.add("etc/group", text("root:x:0:\n_chrony:x:1:\n"));
    tree.add("etc/hosts", text("127.0.0.1 localhost\n"));
    add_busybox(&mut tree, root)?;
    add_programs(&mut tree, root)?;
    let modules = kernel::modules(&root.join(kind.modules()).join(version))?;
    let (dep, alias) = kernel::lists(&modules);
    let place = format!("usr/lib/modules/{version}");
    tree.add(format!("{place}/modules.dep"), text(&dep));
    tree.add(format!("{place}/modules.alias"), text(&alias));
    for module in modules.into_values() {
        tree.add(format!("{place}/{}", module.path), Node::File(0o644, module.content));
    }
    create(path, &mut |file| tree.write(&mut std::io::BufWriter::new(file)))
}

/// busybox under all its names; it is linked statically, so it runs here, too, and says which these are.
fn add_busybox(tree: &mut Tree, root: &Path) -> Result<(), LabError> {
    let program = root.join("bin/busybox");
    let names = command::output_of(
        {
            let mut list = Command::new(&program);
            list.arg("--list").stdin(Stdio::null());
            list
        },
        || format!("{} --list", program.display()),
    )?;
    for name in names.lines().filter(|name| !NOT_BUSYBOX.contains(name)) {
        tree.add(format!("usr/bin/{name}"), Node::Link("busybox".to_owned()));
    }
    tree.add("usr/bin/sh", Node::Link("dash".to_owned()));
    // The kernel loads modules by this path.
    tree.add("usr/sbin/modprobe", Node::Link("../bin/busybox".to_owned()));
    add_file(tree, root, "bin/busybox")
}

/// The programs, and the libraries that they need.
fn add_programs(tree: &mut Tree, root: &Path) -> Result<(), LabError> {
    let mut wanted: Vec<String> = LIBRARIES.iter().map(|&name| name.to_owned()).collect();
    for program in PROGRAMS {
        add_file(tree, root, program)?;
        wanted.extend(elf::libraries(&read_file(&root.join(program))?));
    }
    let mut done = std::collections::BTreeSet::new();
    while let Some(name) = wanted.pop() {
        if !done.insert(name.clone()) {
            continue;
        }
        let place = LIBRARY_DIRECTORIES.iter().map(|directory| format!("{directory}/{name}"));
        let path = place.into_iter().find(|path| root.join(path).exists()).ok_or_else(|| {
            damaged(
                root,
                format!(
                    "no package has {name}, which a program of the guest needs; `ktsn vm image --refresh`"
                ),
            )
        })?;
        add_file(tree, root, &path)?;
        wanted.extend(elf::libraries(&read_file(&root.join(&path))?));
    }
    tree.add(
        "usr/lib64/ld-linux-x86-64.so.2",
        Node::Link("../lib/x86_64-linux-gnu/ld-linux-x86-64.so.2".to_owned()),
    );
    Ok(())
}

/// A file of a package, at its place below `usr`; links are followed.
fn add_file(tree: &mut Tree, root: &Path, path: &str) -> Result<(), LabError> {
    let from = root.join(path);
    let mode = std::fs::metadata(&from).map_err(LabError::file(&from))?.permissions().mode() & 0o755;
    let place = if path.starts_with("usr/") { path.to_owned() } else { format!("usr/{path}") };
    tree.add(place, Node::File(mode, read_file(&from)?));
    Ok(())
}

fn read_file(path: &Path) -> Result<Vec<u8>, LabError> {
    std::fs::read(path).map_err(LabError::file(path))
}

/// Removes images and packages.
///
/// # Errors
/// A file cannot be removed, or the caller was asked to stop while others used the cache.
pub fn remove_images(cache: &Cache) -> Result<(), LabError> {
    let _lock = cache.lock(true, &mut || {})?;
    for directory in Kind::ALL.into_iter().flat_map(|kind| [cache.images(kind), cache.packages(kind)]) {
        match std::fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(LabError::file(&directory)(error));
            }
            _ => {}
        }
    }
    // Whether guests boot with KVM is found out again.
    let _ = std::fs::remove_file(cache.directory.join("kvm"));
    Ok(())
}
