// SPDX-License-Identifier: Apache-2.0
//! A real Prometheus that scrapes a running ktsnd: the metrics, the alert rules and every query of the dashboard. promtool tests the
//! rules. Prometheus is a process of the test: own data directory, loopback port of the testbed's namespace, ended with its value.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use ktsn_tests::faults::bed::{Bed, POD_B, within};
use ktsn_tests::faults::daemon::{Attachment, Daemon, configuration};
use ktsn_tests::faults::eventually;
use ktsn_tests::faults::talker::Talker;
use ktsn_tests::hook::Running;
use serde_json::Value;

const METRICS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9190);
const PROMETHEUS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);
const SOON: Duration = Duration::from_secs(30);
/// Datagrams of the talker, 2 ms apart: Prometheus has a few scrapes of them.
const FRAMES: u64 = 3000;

fn monitoring(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../k8s/deploy/helm/ktsn/monitoring").join(file)
}

/// What the server in the namespace answers to a GET until it closes: status line and body.
fn get(namespace: &str, address: SocketAddr, path: &str) -> Option<(String, String)> {
    let mut stream =
        within(namespace, || TcpStream::connect_timeout(&address, Duration::from_secs(5))).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: x\r\n\r\n").as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    Some((head.lines().next()?.to_owned(), body.to_owned()))
}

fn scrape(bed: &Bed) -> String {
    let (status, text) = get(&bed.host_a, METRICS, "/metrics").expect("a scrape");
    assert!(status.ends_with("200 OK"), "{status}");
    text
}

fn sample(text: &str, series: &str) -> Option<f64> {
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    value.parse().ok()
}

/// ktsnd with an attachment, and `[daemon]` with this line.
fn daemon_with(bed: &Bed, line: &str) -> Daemon {
    let text = format!("[daemon]\n{line}\n{}", configuration(&[Attachment::pod_a(bed)]));
    Daemon::prepare(&bed.host_a, &text)
}

/// Prometheus answers a query; the series that it found.
fn query(bed: &Bed, expression: &str) -> Vec<Value> {
    let escaped: String = expression.bytes().map(|octet| format!("%{octet:02x}")).collect();
    let (_, body) =
        get(&bed.host_a, PROMETHEUS, &format!("/api/v1/query?query={escaped}")).expect("an answer");
    let answer: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
    assert_eq!(answer["status"], "success", "{expression}: {answer}");
    answer["data"]["result"].as_array().cloned().unwrap_or_default()
}

/// Every expression of the dashboard that is shipped, with Grafana's variables filled in.
fn expressions() -> Vec<String> {
    let text = std::fs::read_to_string(monitoring("dashboard.json")).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let filled = |expression: &str| {
        expression
            .replace("$__rate_interval", "1m")
            .replace("\"$instance\"", "\".*\"")
            .replace("\"$attachment\"", "\".*\"")
    };
    targets.map(|target| filled(target["expr"].as_str().expect("an expression"))).collect()
}

/// The metrics that an expression names, as they are on `# TYPE` lines.
fn families(expression: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = expression.split(|c: char| !is_name(c)).filter(|word| word.starts_with("ktsn_"));
    words.map(|word| word.trim_end_matches("_total").trim_end_matches("_bucket").to_owned()).collect()
}

fn start_prometheus(bed: &Bed, directory: &Path) -> Running {
    let rules = monitoring("alerts.yaml").canonicalize().expect("the rules");
    let config = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{:?}]\nscrape_configs:\n  \
         - job_name: ktsnd\n    static_configs: [{{targets: [\"{METRICS}\"]}}]\n",
        rules.display().to_string()
    );
    std::fs::write(directory.join("prometheus.yml"), config).expect("configuration");
    let log = std::fs::File::create(directory.join("log")).expect("log");
    let mut command = Command::new("prometheus");
    command
        .arg(format!("--config.file={}", directory.join("prometheus.yml").display()))
        .arg(format!("--storage.tsdb.path={}", directory.join("data").display()))
        .arg(format!("--web.listen-address={PROMETHEUS}"))
        .args(["--log.level=warn", "--storage.tsdb.retention.time=1h"])
        .env("GOMAXPROCS", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    Running(within(&bed.host_a, || command.spawn()).expect("prometheus (scripts/packages.txt)"))
}

#[test]
fn prometheus_scrapes_ktsnd_and_the_dashboard_shows_it() {
    let (bed, directory) = (Bed::new(), tempfile::tempdir().expect("directory"));
    let mut daemon = daemon_with(&bed, "metrics_listen = \"9190\"");
    daemon.spawn();
    let _prometheus = start_prometheus(&bed, directory.path());
    let log = || std::fs::read_to_string(directory.path().join("log")).unwrap_or_default();
    eventually("Prometheus has a scrape", SOON, || {
        get(&bed.host_a, PROMETHEUS, "/-/ready").filter(|(status, _)| status.ends_with("200 OK"))?;
        (!query(&bed, "ktsn_up").is_empty()).then_some(())
    });
    let timing = format!("count={FRAMES} period_us=2000 lead_us=2000 priority=6");
    let talker = Talker::start(&daemon, &bed.pod_a, POD_B, 1, &timing);
    eventually("Prometheus has three scrapes of a ktsnd with frames", SOON, || {
        let found = query(
            &bed,
            "count_over_time(ktsn_up[1m]) > 2 and on() sum(increase(ktsn_frames_sent_total[1m])) > 0",
        );
        !found.is_empty()
    });
    let text = scrape(&bed);
    for expression in expressions() {
        let found = query(&bed, &expression);
        // Metrics of the node agent, and those by reasons that never happened here, are of no series.
        let is_served = |family: &String| text.contains(&format!("# TYPE {family} "));
        if families(&expression).iter().all(is_served) {
            assert!(!found.is_empty(), "{expression} shows nothing\n{text}\n{}", log());
        }
    }
    assert_eq!(query(&bed, "up{job=\"ktsnd\"}")[0]["value"][1], "1", "{}", log());
    rules_hold(&bed);
    let _ = talker.finish();
    counters_agree(&bed, &daemon);
}

/// The rules are loaded and evaluated without a fault, and nothing fires about a ktsnd that serves.
fn rules_hold(bed: &Bed) {
    let (_, body) = get(&bed.host_a, PROMETHEUS, "/api/v1/rules").expect("an answer");
    let answer: Value = serde_json::from_str(&body).expect("JSON");
    let groups = answer["data"]["groups"].as_array().expect("groups");
    let rules: Vec<&Value> = groups.iter().filter_map(|group| group["rules"].as_array()).flatten().collect();
    let file = std::fs::read_to_string(monitoring("alerts.yaml")).expect("the rules");
    assert_eq!(rules.len(), file.matches("- alert: ").count());
    for rule in rules {
        assert!(rule["lastError"].is_null(), "{rule}");
    }
    for alert in ["KtsnDown", "KtsnNotHealthy", "KtsnThreadStuck", "KtsnPortDown", "KtsnBug"] {
        assert!(
            query(bed, &format!("ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"}}")).is_empty(),
            "{alert} fires"
        );
    }
}

/// The text says what the control API says.
fn counters_agree(bed: &Bed, daemon: &Daemon) {
    let of = daemon.control().counters_of("pod-a", FRAMES, SOON);
    // What was scraped holds for a second.
    let text = eventually("a scrape of now", SOON, || {
        let text = scrape(bed);
        (sample(&text, "ktsn_frames_taken_total{attachment=\"pod-a\"}") == Some(of.taken as f64))
            .then_some(text)
    });
    let counter = |name: &str| sample(&text, &format!("{name}{{attachment=\"pod-a\"}}"));
    assert!(of.sent > 0);
    assert_eq!(counter("ktsn_frames_sent_total"), Some(of.sent as f64));
    assert_eq!(counter("ktsn_sent_octets_total"), Some(of.sent_octets as f64));
    let histogram = of.transmit_error.expect("a distribution");
    assert_eq!(counter("ktsn_transmit_error_seconds_count"), Some(histogram.count as f64));
    assert_eq!(sample(&text, "ktsn_up"), Some(1.0));
}

#[test]
fn promtool_accepts_the_rules() {
    let directory = tempfile::tempdir().expect("directory");
    std::fs::copy(monitoring("alerts.yaml"), directory.path().join("alerts.yaml")).expect("copy");
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("monitoring/alerts_test.yaml");
    std::fs::copy(tests, directory.path().join("alerts_test.yaml")).expect("copy");
    let promtool = |arguments: &[&str]| {
        let run = Command::new("promtool").args(arguments).current_dir(directory.path()).output();
        let output = run.expect("promtool (scripts/packages.txt)");
        (
            output.status.success(),
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)),
        )
    };
    for arguments in [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]] {
        let (is_good, said) = promtool(&arguments);
        assert!(is_good, "{said}");
    }
    // Each rule is in the tests: without it they fail.
    let rules = std::fs::read_to_string(directory.path().join("alerts.yaml")).expect("rules");
    let tests = std::fs::read_to_string(directory.path().join("alerts_test.yaml")).expect("tests");
    for name in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(tests.contains(&format!("alertname=\"{name}\"")), "{name} is not tested");
    }
    std::fs::write(
        directory.path().join("alerts.yaml"),
        rules.replace("ktsn_port_up == 0", "ktsn_port_up == 1"),
    )
    .expect("rules");
    assert!(!promtool(&["test", "rules", "alerts_test.yaml"]).0, "a wrong rule passes its test");
}

#[test]
fn a_port_that_is_taken_is_named_before_anything_is_attached() {
    let bed = Bed::new();
    let _taken = within(&bed.host_a, || std::net::TcpListener::bind(METRICS)).expect("the port");
    let daemon = daemon_with(&bed, "metrics_listen = \":9190\"");
    let (code, said) = daemon.fails(&mut daemon.command());
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("daemon.metrics_listen: 127.0.0.1:9190: Address already in use"), "{said}");
    assert!(said.contains("choose another port"), "{said}");
    assert!(!said.contains(" ready") && !said.contains("attached"), "{said}");
}

/// Silent and hostile connections, as many as are let in and more, do not touch the control API or the frames.
#[test]
fn hostile_scrapers_hold_nothing_up() {
    let bed = Bed::new();
    let mut daemon = daemon_with(&bed, "metrics_listen = \"127.0.0.1:9190\"");
    daemon.spawn();
    let mut streams = Vec::new();
    for number in 0..200 {
        let Ok(mut stream) =
            within(&bed.host_a, || TcpStream::connect_timeout(&METRICS, Duration::from_secs(5)))
        else {
            continue;
        };
        let _ = match number % 3 {
            0 => stream.write_all(b"GET /metr"),
            1 => stream.write_all(&[0xff; 64]),
            _ => Ok(()),
        };
        streams.push(stream);
    }
    let talker =
        Talker::start(&daemon, &bed.pod_a, POD_B, 1, "count=200 period_us=1000 lead_us=20000 priority=6");
    let _ = talker.finish();
    let of = daemon.control().counters_of("pod-a", 200, SOON);
    assert_eq!((of.taken, of.sent), (200, 200));
    assert!(daemon.descriptors() < 150, "connections are bounded: {:?}", daemon.descriptor_kinds());
    drop(streams);
    assert_eq!(sample(&scrape_soon(&bed), "ktsn_up"), Some(1.0));
    assert_eq!(daemon.terminate(SOON), Some(0), "open connections keep no ktsnd from ending");
}

/// A scrape once there is room for its connection again.
fn scrape_soon(bed: &Bed) -> String {
    eventually("a scrape", SOON, || {
        get(&bed.host_a, METRICS, "/metrics")
            .filter(|(status, _)| status.ends_with("200 OK"))
            .map(|(_, text)| text)
    })
}

#[test]
fn without_the_field_nothing_listens() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let listening = std::fs::read_to_string(format!("/proc/{}/net/tcp", daemon.pid())).expect("sockets");
    assert_eq!(listening.lines().count(), 1, "{listening}");
}
