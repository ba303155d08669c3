// SPDX-License-Identifier: Apache-2.0
//! The pure parts of guests, damaged images, and what killed runs leave. tests/tests/vm.rs boots guests.

use super::cpio::{Node, Tree};
use super::image::Facts;
use super::machine::{Accelerator, Descriptors, Machine};
use super::network::{Address, Attachment, Bridge, Datapath};
use super::{Cache, Kind, cache, cpio, elf, image, kernel, run, runs};
use std::time::Duration;

use ktsn_eventually::eventually;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command};

#[test]
fn a_guest_sends_the_files_that_were_asked_for_and_no_others() {
    let wanted = ["/a".into(), "/b".into()];
    let mut files = run::Files::default();
    for name in [b"/a", b"/b"] {
        files.begin(name);
        files.add(name);
        files.check(&wanted).unwrap();
    }
    assert_eq!(files.files, [("/a".into(), b"/a".to_vec()), ("/b".into(), b"/b".to_vec())]);
    files.begin(b"/a");
    assert!(files.check(&wanted).unwrap_err().contains("/a"));
    let mut files = run::Files::default();
    files.begin(b"/etc/shadow");
    assert!(files.check(&wanted).unwrap_err().contains("\"/etc/shadow\", which was not asked for"));
    let mut files = run::Files::default();
    files.begin(b"/a");
    files.add(&vec![0; run::FILES_OCTETS_MAX]);
    files.check(&wanted).unwrap();
    files.add(b"0");
    assert!(files.check(&wanted).unwrap_err().contains("more than 268435456 octets"));
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
    // It is read back: the regular files, up to the archive's end.
    let mut found = Vec::new();
    let mut read = |octets: &[u8]| {
        cpio::files(&mut &*octets, &mut |name, mode, content| {
            found.push((name.to_owned(), mode, content.to_vec()));
            Ok(())
        })
    };
    let behind = [&octets[..], b"another"].concat();
    read(&behind).unwrap();
    for damaged in [&octets[..octets.len() - 8], &octets[4..], &octets[..120], b""] {
        assert!(read(damaged).is_err(), "{}", damaged.len());
    }
    assert_eq!(found[0], ("a/f".to_owned(), 0o755, b"12345".to_vec()));
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
    let descriptors = Descriptors { files: 7, port: 8, network: &[9, 10] };
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
    let address = Some("10.0.0.2/24".parse().unwrap());
    let bridge = Machine { datapath: "bridge:br0@x".parse().unwrap(), address, ..Machine::default() };
    let two = arguments(&Machine { queues: 2, ..bridge.clone() }, Accelerator::Tcg, false);
    assert!(two.contains("tap,id=net,vhost=off,fds=9:10") && two.contains("mq=on,vectors=6"), "{two}");
    assert!(two.contains("mac=02:4b:0a:00:00:02"), "{two}");
    // Two guests without addresses have no common MAC address, either.
    let nameless = Machine { address: None, ..bridge };
    assert_ne!(arguments(&nameless, Accelerator::Tcg, false), arguments(&nameless, Accelerator::Tcg, false));
    let switch =
        Machine { datapath: "vhost-user:/run/s,t".parse().unwrap(), queues: 2, ..Machine::default() };
    let tcg = arguments(&switch, Accelerator::Tcg, false);
    assert!(tcg.contains("path=/run/s,,t,server=on,wait=off") && tcg.contains("mq=on,vectors=0"), "{tcg}");
    // A comma in a name begins no option.
    let watched = Machine { monitor: Some("/run/q,fd=3".into()), ..Machine::default() };
    let watched = arguments(&watched, Accelerator::Tcg, false);
    assert!(
        watched.contains("id=monitor,path=/run/q,,fd=3,server=on,wait=off -mon chardev=monitor"),
        "{watched}"
    );
    assert!(tcg.contains("size=1024M,share=on -numa node,memdev=memory"), "{tcg}");
    assert!(arguments(&switch, Accelerator::Kvm, false).contains("mq=on,vectors=6"));
}

#[test]
fn datapaths_and_addresses_are_read_or_refused_with_what_is_expected() {
    for text in ["none", "user", "tap", "bridge:br0", "bridge:br0@ns-1", "vhost-user:/run/a b"] {
        assert_eq!(text.parse::<Datapath>().unwrap().to_string(), text);
    }
    for (text, words) in [
        ("", "expected none"),
        ("bridge", "bridge:BRIDGE@NAMESPACE"),
        ("bridge:", "no name of a bridge"),
        ("bridge:a/b", "no name of a bridge"),
        ("bridge:-a", "no name of a bridge"),
        ("bridge:sixteen-octets-x", "has 16 octets; a bridge's name has 15 at most"),
        ("bridge:br0@", "no name of a network namespace"),
        ("bridge:br0@../x", "no name of a network namespace"),
        ("vhost-user:", "vhost-user:SOCKET"),
        ("ovs:x", "expected none"),
    ] {
        let error = text.parse::<Datapath>().unwrap_err();
        assert!(error.contains(words), "{text}: {error}");
    }
    for text in ["10.0.0.2/24", "fd00::2/64"] {
        assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
    }
    for text in [
        "10.0.0.2",
        "10.0.0.2/33",
        "10.0.0.2/0",
        "0.0.0.0/8",
        "224.0.0.1/4",
        "x/8",
        "::/64",
        "10.0.0.2/24 dev",
    ] {
        assert!(text.parse::<Address>().unwrap_err().contains("10.0.0.2/24"), "{text}");
    }
}

#[test]
fn a_network_that_is_not_there_is_refused_and_a_socket_has_one_user() {
    let with = |datapath: Datapath| Attachment::new(&datapath, 1, None, Kind::Qemu);
    let bridge = |name: &str, namespace| with(Datapath::Bridge(Bridge::new(name, namespace)));
    for (attached, words) in [
        (bridge("br0", Some("ktsn-nowhere")), "there is no network namespace ktsn-nowhere"),
        (
            bridge("ktsn-nowhere", None),
            "there is no device ktsn-nowhere; `ip link add ktsn-nowhere type bridge`",
        ),
        (bridge("lo", None), "the device lo is no bridge"),
    ] {
        let error = attached.unwrap_err();
        assert!(error.to_string().contains(words) && error.exit_status() == 2, "{error}");
    }
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let first = with(Datapath::VhostUser(socket.clone())).unwrap();
    let error = with(Datapath::VhostUser(socket.clone())).unwrap_err();
    assert!(error.to_string().contains("it exists: another guest"), "{error}");
    assert!(socket.exists(), "the second one does not remove the first one's");
    drop(first);
    assert!(!socket.exists());
    let long = with(Datapath::VhostUser(directory.path().join("x".repeat(200)))).unwrap_err();
    assert!(long.to_string().contains("File name too long") && long.exit_status() == 2, "{long}");
}

#[test]
fn a_console_cannot_control_the_terminal() {
    assert_eq!(run::printable(b"a\x1b[31mb\r\nc\x07\xff\x9b1m"), "a[31mb\nc\u{fffd}\u{fffd}1m");
    assert_eq!(run::printable("x\u{9b}y".as_bytes()), "xy");
}

#[test]
fn an_error_shows_what_a_guest_said_and_not_the_kernels_trace() {
    let (said, panic) =
        ("ktsn vm guest: why", "[ 5.0] Kernel panic - not syncing: Attempted to kill init! exitcode=0x100");
    let trace = format!("{said}\n{panic}\n[ 5.1] Call Trace:\n[ 5.2]  dump_stack");
    assert_eq!(run::before_trace(&trace), format!("{said}\n{panic}"));
    for whole in ["", said, panic, "[ 5.0] Kernel panic - not syncing: VFS\n[ 5.1] Call Trace:"] {
        assert_eq!(run::before_trace(whole), whole);
    }
}

/// A cache with an image that was not made from packages.
fn cache_with_image(directory: &Path) -> (Cache, std::path::PathBuf) {
    let cache = Cache::find(Some(directory));
    std::fs::create_dir_all(cache.packages(Kind::Qemu)).unwrap();
    std::fs::write(cache.packages(Kind::Qemu).join("list"), "").unwrap();
    std::fs::write(cache.packages(Kind::Qemu).join("request"), image::request_line(Kind::Qemu)).unwrap();
    let key = image::key(&cache, Kind::Qemu).unwrap();
    let place = cache.images(Kind::Qemu).join(key);
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
    for part in [directory.path().to_owned(), cache.packages(Kind::Qemu), cache.images(Kind::Qemu)] {
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
        assert!(image::read(&cache, Kind::Qemu).unwrap().is_some());
        damage(&place);
        assert!(image::read(&cache, Kind::Qemu).is_err());
    }
    // Other packages: another image.
    let directory = tempfile::tempdir().unwrap();
    let (cache, _) = cache_with_image(directory.path());
    std::fs::write(cache.packages(Kind::Qemu).join("list"), "0 other.deb\n").unwrap();
    assert!(image::read(&cache, Kind::Qemu).unwrap().is_none());
    // Packages that another recipe asked for are not used.
    let directory = tempfile::tempdir().unwrap();
    let (cache, _) = cache_with_image(directory.path());
    std::fs::write(cache.packages(Kind::Qemu).join("request"), "amd64 busybox-static\n").unwrap();
    assert!(image::read(&cache, Kind::Qemu).unwrap().is_none());
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
    // SIGKILL takes its time on a busy machine.
    eventually("what was left ends", Duration::from_secs(20), || left.has_ended());
    // So would one that is sent to these.
    std::thread::sleep(Duration::from_millis(100));
    assert!(!of_a_live_run.has_ended() && !another.has_ended());
    assert_eq!(std::fs::read_dir(cache.runs()).unwrap().count(), 1);
    drop(live);
    assert_eq!(std::fs::read_dir(cache.runs()).unwrap().count(), 0);
}

/// A socket that another program has taken over since is left alone, and the question does not reach that program.
#[test]
fn only_sockets_without_a_user_are_removed() {
    use std::os::unix::net::{UnixListener, UnixStream};
    let directory = tempfile::tempdir().unwrap();
    let cache = Cache::find(Some(directory.path()));
    std::fs::create_dir_all(cache.runs()).unwrap();
    let [left, used, file] = ["left", "used", "file"].map(|name| directory.path().join(name));
    drop(UnixListener::bind(&left).unwrap());
    // A child that another test starts has it open until it runs its program.
    eventually("nobody listens", Duration::from_secs(20), || UnixStream::connect(&left).is_err());
    let listener = UnixListener::bind(&used).unwrap();
    std::fs::write(&file, "").unwrap();
    let lines = [&left, &used, &file].map(|path| format!("socket {}\n", path.display()));
    std::fs::write(cache.runs().join("1-0"), lines.concat()).unwrap();
    let removed = runs::clean(&cache).unwrap();
    assert_eq!((removed.records, removed.sockets), (1, 1));
    assert!(!left.exists() && used.exists() && file.exists());
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "the listener was disturbed");
}
