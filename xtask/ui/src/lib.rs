//! The lane `ui`: the dashboard in headless Chromium.
//!
//! ```text
//! lane ── tests/dashboard ┬─ stage (product, pods, ChromeDriver) ── objects
//!                         └─ browser ── wire (WebDriver)
//! ```

pub mod browser;
pub mod lane;
pub mod objects;
pub mod pages;
pub mod stage;
mod wire;
