// SPDX-License-Identifier: Apache-2.0
//! The state of the screen: what is shown, in which order, and what each key does.
//!
//! In: views of intervals, and keys. Out: rows for `draw`. Pure: it knows neither a terminal nor ktsnd.

use std::collections::{BTreeMap, VecDeque};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::rows::{self, Interval, Pane, Row};
use crate::plain::plain;

/// Intervals that sparklines remember.
const REMEMBERED: usize = 240;
/// Letters of a filter.
const FILTER_MAX: usize = 40;
/// Rows of a page.
const PAGE: usize = 10;

/// The order of a pane's rows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Order {
    pub column: usize,
    pub is_reversed: bool,
}

/// The p99 of the transmit error of the last intervals, by attachment; `None`: nothing timed was sent.
pub(super) type History = BTreeMap<String, VecDeque<Option<u64>>>;

/// The screen's state.
#[derive(Debug, Default)]
pub(super) struct App {
    pub pane: Pane,
    pub orders: [Order; 3],
    pub filter: String,
    /// Keys are letters of the filter.
    pub is_typing: bool,
    pub is_paused: bool,
    pub shows_help: bool,
    /// The row that is marked, by its key, in each pane.
    selected: [Option<String>; 3],
    /// What is on the screen.
    pub shown: Option<Interval>,
    /// The latest interval while the screen is paused.
    waiting: Option<Interval>,
    pub history: History,
}

impl App {
    /// An interval has passed. A paused screen does not change; errors are remembered all the same.
    pub(super) fn take(&mut self, interval: Interval) {
        let of_now = interval.view.attachments.iter();
        let of_now: BTreeMap<&str, Option<u64>> =
            of_now.map(|of| (of.counted.name.as_str(), of.error.map(|error| error[1]))).collect();
        self.history.retain(|name, _| of_now.contains_key(name.as_str()));
        for (name, error) in of_now {
            let values = self.history.entry(name.to_owned()).or_default();
            if values.len() == REMEMBERED {
                values.pop_front();
            }
            values.push_back(error);
        }
        if self.is_paused {
            self.waiting = Some(interval);
        } else {
            self.shown = Some(interval);
        }
    }

    /// A key was pressed. False: end.
    pub(super) fn press(&mut self, key: KeyEvent) -> bool {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return !matches!(key.code, KeyCode::Char('c' | 'd'));
        }
        if self.is_typing {
            self.type_filter(key.code);
            return true;
        }
        match key.code {
            KeyCode::Char('q') => return false,
            KeyCode::Esc if self.shows_help => self.shows_help = false,
            KeyCode::Esc if !self.filter.is_empty() => self.filter.clear(),
            KeyCode::Esc => return false,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.shows_help = !self.shows_help,
            KeyCode::Char('1') => self.pane = Pane::Ports,
            KeyCode::Char('2') => self.pane = Pane::Attachments,
            KeyCode::Char('3') => self.pane = Pane::Streams,
            KeyCode::Tab | KeyCode::Right => self.pane = self.pane.moved(1),
            KeyCode::BackTab | KeyCode::Left => self.pane = self.pane.moved(2),
            KeyCode::Char('s') => self.sort_by_next(1),
            KeyCode::Char('S') => self.sort_by_next(self.columns() - 1),
            KeyCode::Char('r') => {
                let order = &mut self.orders[self.pane as usize];
                order.is_reversed = !order.is_reversed;
            }
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char(' ' | 'p') => self.pause(),
            KeyCode::Up | KeyCode::Char('k') => self.select(|at, _| at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(|at, last| (at + 1).min(last)),
            KeyCode::PageUp => self.select(|at, _| at.saturating_sub(PAGE)),
            KeyCode::PageDown => self.select(|at, last| (at + PAGE).min(last)),
            KeyCode::Home => self.select(|_, _| 0),
            KeyCode::End => self.select(|_, last| last),
            _ => {}
        }
        true
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(letter) if self.filter.chars().count() < FILTER_MAX => {
                self.filter.push_str(&plain(&letter.to_string()));
            }
            _ => {}
        }
    }

    fn pause(&mut self) {
        self.is_paused = !self.is_paused;
        if !self.is_paused
            && let Some(latest) = self.waiting.take()
        {
            self.shown = Some(latest);
        }
    }

    fn columns(&self) -> usize {
        rows::heads(self.pane).len()
    }

    fn sort_by_next(&mut self, by: usize) {
        let columns = self.columns();
        let order = &mut self.orders[self.pane as usize];
        *order = Order { column: (order.column + by) % columns, is_reversed: false };
    }

    fn select(&mut self, next: impl FnOnce(usize, usize) -> usize) {
        let rows = self.rows();
        let Some(last) = rows.len().checked_sub(1) else { return };
        let at = next(self.selected_of(&rows), last);
        self.selected[self.pane as usize] = rows.get(at).map(|row| row.key.clone());
    }

    /// The place of the marked row; the first one where the row is gone.
    pub(super) fn selected_of(&self, rows: &[Row]) -> usize {
        let key = self.selected[self.pane as usize].as_ref();
        rows.iter().position(|row| Some(&row.key) == key).unwrap_or(0)
    }

    /// The rows of the pane: those that have the filter's text in a name, in the pane's order.
    pub(super) fn rows(&self) -> Vec<Row> {
        let Some(interval) = &self.shown else { return Vec::new() };
        let mut rows = rows::of(self.pane, interval);
        let wanted = self.filter.to_lowercase();
        rows.retain(|row| {
            row.cells.iter().any(|cell| cell.is_text() && cell.text.to_lowercase().contains(&wanted))
        });
        let order = self.orders[self.pane as usize];
        rows.sort_by(|a, b| rows::compare(a, b, order.column));
        if order.is_reversed {
            rows.reverse();
        }
        rows
    }
}

#[cfg(test)]
#[path = "app_tests.rs"]
mod tests;
