// SPDX-License-Identifier: Apache-2.0
//! The screen on a real terminal.
//!
//! In: intervals, keys, signals. Out: the drawn screen. However it ends, the terminal is as it was before: its mode, its cursor and its
//! first screen.

use std::io::{self, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{Clear, ClearType};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::Source;
use super::app::App;
use super::draw::draw;
use super::rows::Interval;

/// The thread of the keys looks that often whether it may end.
const LOOK: Duration = Duration::from_millis(100);

/// The terminal in raw mode, with its second screen.
struct Screen(DefaultTerminal);

impl Screen {
    /// `ratatui` also restores the terminal when a thread panics. A terminal without a second screen still shows what was there before.
    fn open() -> Result<Self, String> {
        let opened = ratatui::try_init().map(Self);
        let opened = opened.and_then(|screen| execute!(stdout(), Clear(ClearType::All)).map(|()| screen));
        opened.map_err(|error| format!("the terminal: {error}; use --once, or write to a pipe"))
    }

    fn draw(&mut self, app: &App) -> Result<(), String> {
        self.0.draw(|frame| draw(app, frame)).map(|_| ()).map_err(|error| format!("the terminal: {error}"))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Reads keys on a thread of its own until this is dropped.
struct Keys {
    events: mpsc::Receiver<io::Result<Event>>,
    is_over: Arc<AtomicBool>,
}

impl Keys {
    fn read() -> Self {
        let (sender, events) = mpsc::channel(16);
        let is_over = Arc::new(AtomicBool::new(false));
        let must_end = is_over.clone();
        std::thread::spawn(move || {
            while !must_end.load(Relaxed) {
                let event = match event::poll(LOOK) {
                    Ok(false) => continue,
                    Ok(true) => event::read(),
                    Err(error) => Err(error),
                };
                let is_last = event.is_err();
                if sender.blocking_send(event).is_err() || is_last {
                    return;
                }
            }
        });
        Self { events, is_over }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
    }
}

fn listen(kind: SignalKind) -> Result<Signal, String> {
    signal(kind).map_err(|error| format!("signals: {error}"))
}

/// Shows intervals until a key or a signal ends it, or ktsnd does.
pub(super) async fn run(mut source: Source) -> Result<(), String> {
    let (mut terminate, mut hang_up) = (listen(SignalKind::terminate())?, listen(SignalKind::hangup())?);
    let mut interrupt = listen(SignalKind::interrupt())?;
    let (mut app, mut screen, mut keys) = (App::default(), Screen::open()?, Keys::read());
    let (intervals, mut passed) = mpsc::channel::<Result<Interval, String>>(1);
    let asking = tokio::spawn(async move {
        loop {
            let interval = next(&mut source).await;
            let is_last = interval.is_err();
            if intervals.send(interval).await.is_err() || is_last {
                return;
            }
        }
    });
    let ended = loop {
        screen.draw(&app)?;
        tokio::select! {
            Some(interval) = passed.recv() => match interval {
                Ok(interval) => app.take(interval),
                Err(why) => break Err(why),
            },
            event = keys.events.recv() => match event {
                Some(Ok(Event::Key(key))) if key.kind != KeyEventKind::Release => {
                    if !app.press(key) {
                        break Ok(());
                    }
                }
                // A new size, or another event: it is drawn again.
                Some(Ok(_)) => {}
                Some(Err(error)) => break Err(format!("the terminal: {error}")),
                None => break Ok(()),
            },
            _ = terminate.recv() => break Ok(()),
            _ = hang_up.recv() => break Ok(()),
            _ = interrupt.recv() => break Ok(()),
        }
    };
    asking.abort();
    ended
}

async fn next(source: &mut Source) -> Result<Interval, String> {
    let view = source.next().await?;
    Ok(Interval { view, gates: source.gates().await? })
}
