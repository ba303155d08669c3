// SPDX-License-Identifier: Apache-2.0
//! Chromium over its DevTools pipe: in: methods. Out: answers, and every event in order.
//! No port is opened: the browser reads its commands from descriptor 3 and answers on 4, each ended by a zero.

use ktsn_eventually::try_eventually;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Debian's browser.
pub(crate) const CHROMIUM: &str = "/usr/bin/chromium";
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest wait for the browser's helpers to end.
const END_MAX: Duration = Duration::from_secs(10);

/// A headless browser with one page; it ends with this value.
pub(crate) struct Browser {
    child: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    next: u64,
    session: Option<String>,
    /// Every event so far.
    pub(crate) events: Vec<Value>,
    // The browser's profile; removed after the browser and its helpers have ended.
    profile: Option<tempfile::TempDir>,
}

impl Browser {
    /// Starts the browser on an empty profile of its own and opens a page.
    pub(crate) fn start() -> Self {
        assert!(
            Path::new(CHROMIUM).exists(),
            "{CHROMIUM} is missing: 'make setup' installs it (Debian package chromium)"
        );
        let profile = tempfile::tempdir().expect("a directory for the browser's profile");
        // The shell only moves the pipes to descriptors 3 and 4, then becomes the browser.
        let mut child = Command::new("/bin/sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null", "sh", CHROMIUM])
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .env("HOME", profile.path())
            .env("TMPDIR", profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("the browser starts");
        let commands = child.stdin.take().expect("a pipe");
        let mut answers = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            let mut octets = Vec::new();
            while matches!(answers.read_until(0, &mut octets), Ok(count) if count > 0) {
                octets.pop();
                if let Ok(message) = serde_json::from_slice(&octets)
                    && sender.send(message).is_err()
                {
                    return;
                }
                octets.clear();
            }
        });
        let profile = Some(profile);
        let mut browser =
            Self { child, commands, messages, next: 0, session: None, events: Vec::new(), profile };
        browser.attach();
        browser
    }

    fn attach(&mut self) {
        let target = self.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let attached =
            self.call("Target.attachToTarget", &json!({ "targetId": target["targetId"], "flatten": true }));
        self.session = attached["sessionId"].as_str().map(str::to_owned);
        assert!(self.session.is_some(), "the browser gives a session: {attached}");
        for domain in ["Page", "Runtime", "Network", "Log"] {
            self.call(&format!("{domain}.enable"), &json!({}));
        }
    }

    /// Calls a method and waits for its answer.
    pub(crate) fn call(&mut self, method: &str, params: &Value) -> Value {
        self.next += 1;
        let mut message = json!({ "id": self.next, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut octets = message.to_string().into_bytes();
        octets.push(0);
        self.commands.write_all(&octets).expect("the browser listens");
        let id = json!(self.next);
        let answer = self.wait(method, |message| message["id"] == id);
        assert!(answer.get("error").is_none(), "{method}: {}", answer["error"]);
        answer["result"].clone()
    }

    /// Waits for a message; events on the way are kept.
    fn wait(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.messages.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(message) => {
                    let found = wanted(&message);
                    if message.get("method").is_some() {
                        self.events.push(message.clone());
                    }
                    if found {
                        return message;
                    }
                }
                Err(RecvTimeoutError::Timeout) => panic!("{what}: no answer within {PATIENCE:?}"),
                Err(RecvTimeoutError::Disconnected) => panic!("{what}: the browser has ended"),
            }
        }
    }

    /// The value of an expression in the page; promises are awaited.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let answer = self.call(
            "Runtime.evaluate",
            &json!({ "expression": expression, "awaitPromise": true, "returnByValue": true }),
        );
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }

    /// Polls an expression until it is true.
    pub(crate) fn until(&mut self, expression: &str) {
        let is_true = || self.evaluate(expression) == json!(true);
        if try_eventually(PATIENCE, is_true).is_none() {
            panic!("never true: {expression}\n{:?}", self.complaints());
        }
    }

    /// Opens a file and waits until it has loaded.
    pub(crate) fn open(&mut self, file: &Path) {
        let url = format!("file://{}", file.display());
        let answer = self.call("Page.navigate", &json!({ "url": url }));
        assert!(answer.get("errorText").is_none(), "{url}: {answer}");
        self.until("location.protocol === 'file:' && document.readyState === 'complete'");
    }

    /// A picture of the whole page, as PNG in base 64.
    pub(crate) fn picture(&mut self) -> String {
        let size = self.call("Page.getLayoutMetrics", &json!({}));
        let (width, height) = (&size["cssContentSize"]["width"], &size["cssContentSize"]["height"]);
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": 1 });
        let params = json!({ "format": "png", "captureBeyondViewport": true, "clip": clip });
        self.call("Page.captureScreenshot", &params)["data"].as_str().unwrap_or_default().to_owned()
    }

    /// Uncaught exceptions, errors and warnings of the console, and violations of the page's own policy.
    pub(crate) fn complaints(&self) -> Vec<&Value> {
        let bad =
            |event: &&Value| match event["method"].as_str() {
                Some("Runtime.exceptionThrown") => true,
                Some("Runtime.consoleAPICalled") => ["error", "assert", "warning"]
                    .contains(&event["params"]["type"].as_str().unwrap_or_default()),
                Some("Log.entryAdded") => ["error", "warning"]
                    .contains(&event["params"]["entry"]["level"].as_str().unwrap_or_default()),
                _ => false,
            };
        self.events.iter().filter(bad).collect()
    }

    /// Addresses that the page asked for, apart from what lies in the page itself.
    pub(crate) fn requests(&self) -> Vec<&str> {
        let sent = self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        let urls = sent.filter_map(|event| event["params"]["request"]["url"].as_str());
        urls.filter(|url| !url.starts_with("data:") && !url.starts_with("blob:")).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its helpers outlive it for a moment, and write into the profile. All may have ended by themselves; then there is nothing to
        // kill.
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
        let _ = self.child.wait();
        let is_alive = || group.is_some_and(|group| test_kill_process_group(group).is_ok());
        try_eventually(END_MAX, || !is_alive());
        let Some(path) = self.profile.take().map(tempfile::TempDir::keep) else { return };
        try_eventually(END_MAX, || std::fs::remove_dir_all(&path).is_ok() || !path.exists());
    }
}
