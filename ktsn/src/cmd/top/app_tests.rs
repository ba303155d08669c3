// SPDX-License-Identifier: Apache-2.0
//! Keys, and what they change.

use super::super::samples::interval;
use super::*;

fn press(app: &mut App, keys: &str) {
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '\x08' => KeyCode::Backspace,
            letter => KeyCode::Char(letter),
        };
        assert!(app.press(KeyEvent::new(code, KeyModifiers::NONE)), "{key:?} ends it");
    }
}

fn names(app: &App) -> Vec<String> {
    app.rows().iter().map(|row| row.cells[0].text.clone()).collect()
}

fn app() -> App {
    let mut app = App::default();
    app.take(interval(&[("pod-b", 10, 900), ("pod-a", 500, 100), ("lab", 20, 0)]));
    app
}

#[test]
fn rows_are_sorted_by_any_column() {
    let mut app = app();
    assert_eq!(names(&app), ["lab", "pod-a", "pod-b"]);
    press(&mut app, "r");
    assert_eq!(names(&app), ["pod-b", "pod-a", "lab"]);
    press(&mut app, "ss");
    assert_eq!(names(&app), ["pod-a", "lab", "pod-b"], "by what was sent, the greatest first");
    press(&mut app, "sssss");
    assert_eq!(names(&app), ["pod-b", "pod-a", "lab"], "by p99; without one at the end");
    press(&mut app, "SSSSSSS");
    assert_eq!(names(&app), ["lab", "pod-a", "pod-b"]);
    let columns = rows::heads(app.pane).len();
    press(&mut app, &"s".repeat(columns));
    assert_eq!(app.orders[app.pane as usize].column, 0, "around");
}

#[test]
fn a_filter_is_typed_kept_and_cleared() {
    let mut app = app();
    press(&mut app, "/PODq\x08");
    assert_eq!((names(&app), app.is_typing), (vec!["pod-a".to_owned(), "pod-b".to_owned()], true));
    press(&mut app, "-b\n");
    assert_eq!((names(&app), app.is_typing), (vec!["pod-b".to_owned()], false));
    press(&mut app, "3");
    assert_eq!(app.rows().len(), 1, "streams of that attachment");
    press(&mut app, "\x1b");
    assert_eq!(app.rows().len(), 3);
    press(&mut app, "/x\x1b");
    assert_eq!((app.filter.as_str(), app.is_typing), ("", false));
}

#[test]
fn a_paused_screen_stands_still_and_remembers() {
    let mut app = app();
    press(&mut app, " ");
    app.take(interval(&[("new", 1, 50)]));
    assert_eq!(names(&app), ["lab", "pod-a", "pod-b"]);
    assert_eq!(app.history.keys().collect::<Vec<_>>(), ["new"], "what is gone is forgotten");
    press(&mut app, "p");
    assert_eq!(names(&app), ["new"]);
}

#[test]
fn errors_are_remembered_within_a_bound() {
    let mut app = App::default();
    for error in 0..REMEMBERED as u64 + 50 {
        app.take(interval(&[("pod", 1, error)]));
    }
    assert_eq!(app.history["pod"].len(), REMEMBERED);
    assert!(app.history["pod"].iter().all(Option::is_some));
    app.take(interval(&[("pod", 0, 0)]));
    assert_eq!(app.history["pod"].back(), Some(&None));
}

#[test]
fn a_marked_row_stays_marked_when_the_order_changes() {
    let mut app = app();
    press(&mut app, "j");
    assert_eq!(app.rows()[app.selected_of(&app.rows())].key, "pod-a");
    press(&mut app, "r");
    assert_eq!(app.rows()[app.selected_of(&app.rows())].key, "pod-a");
    press(&mut app, "kkkk");
    assert_eq!(app.selected_of(&app.rows()), 0);
    press(&mut app, "jjjjjjj");
    assert_eq!(app.selected_of(&app.rows()), 2);
    app.take(interval(&[("other", 1, 1)]));
    assert_eq!(app.selected_of(&app.rows()), 0, "the marked one is gone");
}

#[test]
fn panes_are_chosen_and_keys_end_it() {
    let mut app = app();
    for (key, pane) in [("1", Pane::Ports), ("3", Pane::Streams), ("2", Pane::Attachments)] {
        press(&mut app, key);
        assert_eq!(app.pane, pane);
    }
    let plain = |code| KeyEvent::new(code, KeyModifiers::NONE);
    assert!(app.press(plain(KeyCode::BackTab)) && app.pane == Pane::Ports);
    assert!(app.press(plain(KeyCode::Tab)) && app.pane == Pane::Attachments);
    press(&mut app, "?");
    assert!(app.shows_help);
    press(&mut app, "\x1b");
    assert!(!app.shows_help);
    assert!(!app.press(plain(KeyCode::Esc)) && !app.press(plain(KeyCode::Char('q'))));
    assert!(!app.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    let mut empty = App::default();
    press(&mut empty, "jk123sSr/a\n?");
}
