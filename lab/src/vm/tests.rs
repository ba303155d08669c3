// SPDX-License-Identifier: Apache-2.0
//! The pure parts of guests, damaged images, and what killed runs leave. tests/tests/vm.rs boots guests.

use super::cpio::{Node, Tree};
use super::image::Facts;
use super::machine::{Accelerator, Datapath, Descriptors, Machine};
use super::protocol::{Decoder, Ended, Job, Message, PAYLOAD_OCTETS_MAX, Violation};
use super::{Cache, cache, elf, image, kernel, run, runs};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;
use std::process::{Child, Command};

/// What a decoder makes of octets in pieces of one length.
fn heard(octets: &[u8], piece: usize) -> Result<Vec<String>, Violation> {
    let (mut decoder, mut heard) = (Decoder::default(), Vec::new());
    for part in octets.chunks(piece) {
        decoder.take(part, &mut |message| heard.push(format!("{message:?}")))?;
    }
    Ok(heard)
}

#[test]
fn messages_come_as_they_were_sent_in_pieces_of_any_length() {
    let long = vec![7; PAYLOAD_OCTETS_MAX];
    for ended in [Ended::Exited(0), Ended::Exited(255), Ended::Killed(9), Ended::NotStarted(2)] {
        let sent = [
            Message::Ready,
            Message::Stdout(b"out"),
            Message::Stderr(b""),
            Message::Stdout(&long),
            Message::Stderr(b"\xff\n"),
            Message::Ended(ended),
        ];
        let mut octets = Vec::new();
        for message in &sent {
            message.write(&mut octets).unwrap();
        }
        let expected: Vec<String> = sent.iter().map(|message| format!("{message:?}")).collect();
        for piece in [1, 2, 3, 5, 6, 7, 1000, octets.len()] {
            assert_eq!(heard(&octets, piece).unwrap(), expected, "pieces of {piece}");
        }
        // A message that is not complete is not heard.
        assert_eq!(heard(&octets[..octets.len() - 1], 4096).unwrap(), expected[..5]);
    }
    let too_long = vec![0; PAYLOAD_OCTETS_MAX + 1];
    assert!(Message::Stdout(&too_long).write(&mut Vec::new()).is_err());
}

#[test]
fn a_guest_that_lies_is_found_out_at_once() {
    const READY: &[u8] = b"r\0\0\0\0";
    let after_ready = |rest: &[u8]| heard(&[READY, rest].concat(), 3);
    assert_eq!(heard(b"q\0\0\0\0", 1), Err(Violation::Kind(b'q')));
    assert_eq!(after_ready(b"\x1b\0\0\0\0"), Err(Violation::Kind(0x1b)));
    // The length is refused before any octet of what it announces.
    assert_eq!(after_ready(b"o\x01\0\x01\0"), Err(Violation::Length(b'o', 65_537)));
    assert_eq!(after_ready(b"e\xff\xff\xff\xff"), Err(Violation::Length(b'e', u32::MAX)));
    assert_eq!(after_ready(b"x\0\0\0\0"), Err(Violation::Length(b'x', 0)));
    assert_eq!(after_ready(b"k\x02\0\0\0\0\0"), Err(Violation::Length(b'k', 2)));
    assert_eq!(heard(b"r\x01\0\0\0", 9), Err(Violation::Length(b'r', 1)));
    assert_eq!(heard(b"o\0\0\0\0", 9), Err(Violation::Order(b'o')));
    assert_eq!(after_ready(READY), Err(Violation::Order(b'r')));
    assert_eq!(after_ready(b"x\x01\0\0\0\0o\0\0\0\0"), Err(Violation::Order(b'o')));
    assert_eq!(after_ready(b"x\x01\0\0\0\0k\x01\0\0\0\x09"), Err(Violation::Order(b'k')));
}

#[test]
fn a_job_comes_whole() {
    let arguments: [&[u8]; 6] = [b"sh", b"-c", b"", b"a\nb", b"\xff\xfe", b"--"];
    let job = Job {
        in_host_tree: true,
        has_user_network: false,
        directory: "/a b".into(),
        program: arguments.iter().map(|argument| OsString::from_vec(argument.to_vec())).collect(),
    };
    assert_eq!(Job::decode(&job.encode()), Some(job.clone()));
    for damaged in [&b""[..], b"\0", b"1\x000\0/\0", b"2\x000\0/\0sh\0", b"1\x000\0/\0sh"] {
        assert_eq!(Job::decode(damaged), None, "{damaged:?}");
    }
}

#[test]
fn an_archive_is_as_the_kernel_reads_it() {
    let mut tree = Tree::default();
    tree.add("b", Node::Link("a/f".to_owned()));
    tree.add("a/f", Node::File(0o755, b"12345".to_vec()));
    let mut octets = Vec::new();
    tree.write(&mut octets).unwrap();
    let head = |inode: u32, mode: u32, octets: usize, name: &str| {
        let zeros = "0".repeat(8);
        let length = name.len() + 1;
        let before = format!(
            "070701{inode:08X}{mode:08X}{zeros}{zeros}00000001{zeros}{octets:08X}{}",
            zeros.repeat(4)
        );
        format!("{before}{length:08X}{zeros}{name}\0")
    };
    // A head has 110 octets before the name.
    let expected = [
        head(1, 0o040_755, 0, "a"),
        head(2, 0o100_755, 5, "a/f") + "\0\0" + "12345\0\0\0",
        head(3, 0o120_777, 3, "b") + "a/f\0",
        head(4, 0, 0, "TRAILER!!!") + "\0\0\0",
    ];
    assert_eq!(String::from_utf8_lossy(&octets), expected.concat());
    assert_eq!(octets.len() % 4, 0);
}

#[test]
fn the_compressed_kernel_is_found_or_refused() {
    let mut image = vec![0; 0x1000];
    image[0x1f1] = 1;
    image[0x202..0x208].copy_from_slice(b"HdrS\x0f\x02");
    image[0x248..0x24c].copy_from_slice(&0x10_u32.to_le_bytes());
    image[0x24c..0x250].copy_from_slice(&9_u32.to_le_bytes());
    image[0x410..0x419].copy_from_slice(b"\xfd7zXZ\0abc");
    assert_eq!(kernel::xz_payload(&image), Some(&b"\xfd7zXZ\0abc"[..]));
    for (at, octet) in [(0x202, b'h'), (0x206, 7), (0x24f, 0xff), (0x24b, 0xff), (0x410, 0), (0x1f1, 0xff)] {
        let mut other = image.clone();
        other[at] = octet;
        if at == 0x206 {
            other[0x207] = 2;
        }
        assert_eq!(kernel::xz_payload(&other), None, "{at:#x}");
    }
    for end in 0..0x419 {
        assert_eq!(kernel::xz_payload(&image[..end]), None, "{end:#x}");
    }
}

#[test]
fn elf_files_say_what_they_need() {
    let own = std::fs::read("/proc/self/exe").unwrap();
    assert!(elf::libraries(&own).contains(&"libc.so.6".to_owned()));
    assert!(elf::module_says(&own, "depends").is_empty());
    for end in [0, 4, 64, 4096, own.len() / 2] {
        // Whatever a cut file gives, it gives no panic.
        elf::libraries(&own[..end]);
        elf::module_says(&own[..end], "alias");
    }
}

#[test]
fn modules_stand_before_what_they_need() {
    let module = |path: &str, needs: &[&str], aliases: &[&str]| kernel::Module {
        path: path.to_owned(),
        content: Vec::new(),
        needs: needs.iter().map(|&name| name.to_owned()).collect(),
        aliases: aliases.iter().map(|&alias| alias.to_owned()).collect(),
    };
    let modules: BTreeMap<String, kernel::Module> = [
        ("a", module("a.ko", &["b", "d"], &["fs-a"])),
        ("b", module("b.ko", &["c"], &[])),
        ("c", module("c.ko", &["builtin"], &["x:*", "y"])),
        ("d", module("d.ko", &["b"], &[])),
    ]
    .map(|(name, module)| (name.to_owned(), module))
    .into();
    let (dep, alias) = kernel::lists(&modules);
    // modprobe loads from the end: c, b, d, a.
    assert_eq!(dep, "a.ko: d.ko b.ko c.ko\nb.ko: c.ko\nc.ko:\nd.ko: b.ko c.ko\n");
    assert_eq!(alias, "alias fs-a a\nalias x:* c\nalias y c\n");
}

#[test]
fn a_machine_that_cannot_be_had_is_refused_by_its_flag() {
    let machine = Machine::default();
    machine.check().unwrap();
    let many = |datapath| Machine { queues: 4, datapath, ..machine.clone() };
    many(Datapath::Tap).check().unwrap();
    for (machine, words) in [
        (many(Datapath::None), "--queues 4: there is no device"),
        (many(Datapath::User), "--queues 4: the device of --datapath user has one queue; use --datapath tap"),
        (Machine { queues: 0, ..machine.clone() }, "--queues 0: expected 1 to 16"),
        (Machine { cpus: 17, ..machine.clone() }, "--cpus 17"),
        (Machine { memory_mib: 255, ..machine.clone() }, "--memory 255: expected 256"),
    ] {
        let error = machine.check().unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(error.exit_status(), 2);
    }
    let small = Machine { memory_mib: 512, ..machine };
    small.check_files(128 << 20).unwrap();
    let error = small.check_files(180 << 20).unwrap_err().to_string();
    assert!(error.contains("--memory 512: the guest's files take 180 MiB; expected 668 or more"), "{error}");
}

#[test]
fn the_arguments_of_qemu() {
    let descriptors = Descriptors { files: 7, port: 8 };
    let arguments = |machine: &Machine, accelerator, host| {
        machine.arguments(accelerator, Path::new("/k"), descriptors, host).join(" ")
    };
    let plain = arguments(&Machine::default(), Accelerator::Tcg, false);
    for words in
        ["-accel tcg,thread=multi", "-smp 1", "-kernel /k", "-initrd /proc/self/fd/7", "fd=8", "-- vm guest"]
    {
        assert!(plain.contains(words), "{words}: {plain}");
    }
    // No device, and nothing of the host's.
    assert!(!plain.contains("net") && !plain.contains("-virtfs") && !plain.contains("kvm"), "{plain}");
    let tap = Machine { datapath: Datapath::Tap, queues: 4, ..Machine::default() };
    let tap = arguments(&tap, Accelerator::Kvm, true);
    for words in [
        "-accel kvm",
        "queues=4",
        "mq=on,vectors=10",
        "path=/,mount_tag=host,security_model=none,readonly=on",
    ] {
        assert!(tap.contains(words), "{words}: {tap}");
    }
}

#[test]
fn a_console_cannot_control_the_terminal() {
    assert_eq!(run::printable(b"a\x1b[31mb\r\nc\x07\xff\x9b1m"), "a[31mb\nc\u{fffd}\u{fffd}1m");
    assert_eq!(run::printable("x\u{9b}y".as_bytes()), "xy");
}

/// A cache with an image that was not made from packages.
fn cache_with_image(directory: &Path) -> (Cache, std::path::PathBuf) {
    let cache = Cache::find(Some(directory));
    std::fs::create_dir_all(cache.packages()).unwrap();
    std::fs::write(cache.packages().join("list"), "").unwrap();
    std::fs::write(cache.packages().join("request"), image::request_line()).unwrap();
    let key = image::key(&cache).unwrap();
    let place = cache.images().join(key);
    std::fs::create_dir_all(&place).unwrap();
    let mut checksums = BTreeMap::new();
    for name in ["kernel", "files.cpio"] {
        std::fs::write(place.join(name), name).unwrap();
        checksums.insert(name.to_owned(), cache::checksum_of(name));
    }
    let facts = Facts { kernel: "6".to_owned(), packages: Vec::new(), checksums };
    std::fs::write(place.join("image.json"), serde_json::to_string(&facts).unwrap()).unwrap();
    (cache, place)
}

#[test]
fn a_cache_that_others_write_to_is_refused() {
    let open = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    let directory = tempfile::tempdir().unwrap();
    let (cache, _) = cache_with_image(directory.path());
    assert!(cache.lock(false, &mut || {}).is_ok());
    for part in [directory.path().to_owned(), cache.packages(), cache.images()] {
        std::fs::set_permissions(&part, open(0o777)).unwrap();
        let said = cache.lock(false, &mut || {}).expect_err("open to all").to_string();
        assert!(said.contains(&part.display().to_string()) && said.contains("777"), "{said}");
        std::fs::set_permissions(&part, open(0o755)).unwrap();
    }
}

#[test]
fn a_damaged_image_is_never_used() {
    let damages: [&dyn Fn(&Path); 5] = [
        &|place| std::fs::write(place.join("kernel"), "kerneL").unwrap(),
        &|place| std::fs::write(place.join("files.cpio"), "files").unwrap(),
        &|place| std::fs::remove_file(place.join("kernel")).unwrap(),
        &|place| std::fs::write(place.join("image.json"), "{\"kernel\":").unwrap(),
        &|place| std::fs::remove_file(place.join("image.json")).unwrap(),
    ];
    for damage in damages {
        let directory = tempfile::tempdir().unwrap();
        let (cache, place) = cache_with_image(directory.path());
        assert!(image::read(&cache).unwrap().is_some());
        damage(&place);
        assert!(image::read(&cache).is_err());
    }
    // Other packages: another image.
    let directory = tempfile::tempdir().unwrap();
    let (cache, _) = cache_with_image(directory.path());
    std::fs::write(cache.packages().join("list"), "0 other.deb\n").unwrap();
    assert!(image::read(&cache).unwrap().is_none());
    // Packages that another recipe asked for are not used.
    let directory = tempfile::tempdir().unwrap();
    let (cache, _) = cache_with_image(directory.path());
    std::fs::write(cache.packages().join("request"), "amd64 busybox-static\n").unwrap();
    assert!(image::read(&cache).unwrap().is_none());
}

#[test]
fn a_damaged_package_is_never_used() {
    let directory = tempfile::tempdir().unwrap();
    let list = directory.path().join("list");
    std::fs::write(directory.path().join("a.deb"), "a").unwrap();
    std::fs::write(&list, format!("{} a.deb\n", cache::checksum_of("a"))).unwrap();
    assert_eq!(image::listed(directory.path()).unwrap(), ["a.deb"]);
    std::fs::write(directory.path().join("a.deb"), "b").unwrap();
    let error = image::listed(directory.path()).unwrap_err().to_string();
    assert!(error.contains("a.deb: its checksum"), "{error}");
    std::fs::write(&list, format!("{} ../a.deb\n", cache::checksum_of("a"))).unwrap();
    assert!(image::listed(directory.path()).is_err());
}

/// A process that is ended with the test.
struct Sleeper(Child);

impl Sleeper {
    fn new() -> Self {
        Self(Command::new("sleep").arg("600").spawn().unwrap())
    }

    fn has_ended(&mut self) -> bool {
        std::thread::sleep(std::time::Duration::from_millis(100));
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_a_killed_run_left_is_removed_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let cache = Cache::find(Some(directory.path()));
    assert_eq!(runs::clean(&cache).unwrap(), runs::Removed::default());
    let [mut left, mut of_a_live_run, mut another] = [Sleeper::new(), Sleeper::new(), Sleeper::new()];
    let start = |process: &Sleeper| runs::start_time(process.0.id()).unwrap();
    let mut live = runs::Record::new(&cache).unwrap();
    live.name_process(of_a_live_run.0.id()).unwrap();
    let record = |name: &str, text: String| std::fs::write(cache.runs().join(name), text).unwrap();
    record("1-0", format!("{} {}\n", left.0.id(), start(&left)));
    // The number was given to another process since.
    record("1-1", format!("{} {}\n", another.0.id(), start(&another) + 1));
    record("1-2", String::new());
    record("1-3", "-1 x".repeat(100));
    let removed = runs::clean(&cache).unwrap();
    assert_eq!((removed.records, removed.processes), (4, vec![left.0.id()]));
    assert!(left.has_ended() && !of_a_live_run.has_ended() && !another.has_ended());
    assert_eq!(std::fs::read_dir(cache.runs()).unwrap().count(), 1);
    drop(live);
    assert_eq!(std::fs::read_dir(cache.runs()).unwrap().count(), 0);
}
