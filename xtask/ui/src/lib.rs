//! The lane `ui`, `cargo xtask shots` and `cargo xtask ui-figures`: the dashboard in headless Chromium.
//!
//! ```text
//! lane ── tests/dashboard ┐
//! shots ── docs/images    ├─ stage (product, pods, ChromeDriver) ── objects
//! figures                 ┴─ browser ── wire (WebDriver)
//! ```
#![allow(clippy::print_stdout, reason = "a command-line tool talks on its standard output")]

pub mod browser;
pub mod figures;
pub mod lane;
pub mod objects;
pub mod pages;
pub mod shots;
pub mod stage;
mod wire;
