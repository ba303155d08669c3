// SPDX-License-Identifier: Apache-2.0
//! Screens, drawn into a buffer.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::super::samples::interval;
use super::*;

/// The screen's lines.
fn screen(app: &App, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(app, frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect()
}

fn app(keys: &str) -> App {
    let mut app = App::default();
    for error in [1_000, 2_000, 0, 4_000] {
        app.take(interval(&[("pod-a/eth0", 500, error), ("pod-b/eth0", 10, 900)]));
    }
    for key in keys.chars() {
        app.press(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE));
    }
    app
}

#[test]
fn attachments_fit_into_80_by_24() {
    let lines = screen(&app(""), 80, 24);
    assert_eq!(lines[0], "ktsnd serving, clock synchronised; 1.00 s interval");
    assert!(
        lines[1].starts_with(" 1 Ports   2 Attachments   3 Streams") && lines[1].ends_with("by attachment"),
        "{}",
        lines[1]
    );
    assert!(lines[3].starts_with("attachment streams sent late overrun dropped"), "{}", lines[3]);
    assert!(lines[4].starts_with("pod-a/eth0       1  500    0       0       0 4.00 µs"), "{}", lines[4]);
    assert!(lines[4].ends_with("▂▄ █"), "errors of four intervals: {}", lines[4]);
    assert_eq!(lines[23], KEYS);
    assert!(KEYS.len() <= 80 && HELP.iter().all(|line| line.len() <= 80) && HELP.len() < 24);
}

#[test]
fn streams_have_a_sparkline() {
    let lines = screen(&app("3"), 80, 24);
    assert!(lines[3].starts_with("attachment local           peer"), "{}", lines[3]);
    assert!(
        lines[4].starts_with("pod-a/eth0 10.244.0.5:7000 -    4.00 µs") && lines[4].ends_with("▂▄ █"),
        "{}",
        lines[4]
    );
}

#[test]
fn the_gates_of_a_port_are_a_strip_with_its_frames() {
    let lines = screen(&app("1"), 80, 24);
    assert!(lines[4].starts_with("eth1 up"), "{}", lines[4]);
    assert_eq!(lines[13], "gates of eth1 (line), one cycle of 1.00 ms");
    let class = |class: usize| &lines[14 + 7 - class];
    assert!(class(6).starts_with("6 ████") && class(6).ends_with("···· 1234/s"), "{}", class(6));
    assert!(class(0).starts_with("0 ····") && class(0).ends_with("████    0/s"), "{}", class(0));
    assert_eq!(lines[22], "  ^");
}

#[test]
fn more_room_shows_more_columns_and_less_room_the_first_ones() {
    assert!(screen(&app(""), 200, 50)[3].contains("Mbit"));
    assert!(!screen(&app(""), 80, 24)[3].contains("Mbit"));
    for (width, height) in [(1, 1), (2, 30), (20, 5), (39, 3), (80, 8), (300, 100)] {
        for keys in ["", "1", "3", "?", "/x"] {
            let lines = screen(&app(keys), width, height);
            assert_eq!(lines.len(), usize::from(height));
        }
    }
    assert!(screen(&App::default(), 80, 24)[0].starts_with("waiting"));
}

#[test]
fn help_pause_and_filter_are_shown() {
    assert!(screen(&app("?"), 80, 24)[2].starts_with("1 2 3, Tab"));
    assert!(screen(&app(" "), 80, 24)[0].starts_with("PAUSED"));
    let lines = screen(&app("/zzz"), 80, 24);
    assert!(lines[1].ends_with("/zzz_") && lines[4] == "no name has the filter's text", "{lines:?}");
}

/// More rows than lines: the marked one is always there.
#[test]
fn the_marked_row_is_on_the_screen() {
    let names: Vec<String> = (0..100).map(|n| format!("pod-{n:03}")).collect();
    let mut app = App::default();
    app.take(interval(&names.iter().map(|name| (name.as_str(), 1, 1)).collect::<Vec<_>>()));
    for _ in 0..57 {
        app.press(KeyEvent::new(KeyCode::Down, KeyModifiers::NONE));
    }
    let lines = screen(&app, 80, 24);
    assert!(lines.iter().any(|line| line.starts_with("pod-057")), "{lines:?}");
    assert!(lines[22].starts_with("pod-057") && lines[23] == KEYS);
}

#[test]
fn no_name_reaches_the_terminal_as_a_command() {
    let evil = "a\x1b[2J\x1b]0;x\x07\u{9b}31m\u{202e}\r\n漢字-and-a-name-that-is-far-too-long-for-its-column";
    let mut app = App::default();
    app.take(interval(&[(evil, 1, 1)]));
    for keys in ["2", "3", "1", "/\x1b"] {
        for key in keys.chars() {
            app.press(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE));
        }
        let text = screen(&app, 80, 24).concat();
        assert!(!text.chars().any(|c| c.is_control() || c == '\u{202e}'), "{text:?}");
    }
    let table = app.shown.as_ref().unwrap().view.table();
    assert!(!table.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}'), "{table:?}");
}
