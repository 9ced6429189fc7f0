//! The dashboard in headless Chromium, served by a product with few hosts and one with ten thousand.
//!
//! `cargo xtask test ui` starts both and ChromeDriver. The tests here find them and skip loudly where they are missing
//! (`REQUIRE_UI=1` makes that an error). Each test opens a browser of its own, and removes the manifests that it wrote.
#![allow(clippy::panic, reason = "helpers of tests may fail a test")]

mod access;
mod changes;
mod keyboard;
mod looks;
mod pages;

use ingress_lab::capability::skipped;
use xtask_tools::process::is_required;
use xtask_ui::browser::Browser;
use xtask_ui::stage::{Plan, Product};

/// The running processes, and a browser for one test.
struct Scene {
    plan: Plan,
    browser: Browser,
}

impl Scene {
    /// Opens a browser; returns `None` where the lane does not run.
    fn open(test: &str) -> Option<Self> {
        let Some(plan) = Plan::from_env().expect("the stage") else {
            assert!(!is_required("REQUIRE_UI"), "there is no stage, and REQUIRE_UI=1; run `cargo xtask test ui`");
            skipped(test, "there is no stage; run `cargo xtask test ui`");
            return None;
        };
        let browser = Browser::open(&plan).unwrap_or_else(|error| panic!("{error:#}"));
        Some(Self { plan, browser })
    }

    /// The product with few hosts.
    fn few(&self) -> &Product {
        &self.plan.products[0]
    }

    /// The product with ten thousand hosts.
    fn many(&self) -> &Product {
        &self.plan.products[1]
    }

    /// Loads a page of `product`.
    fn visit(&self, product: &Product, path: &str) {
        self.browser.visit(&product.url(path)).unwrap_or_else(|error| panic!("{error:#}"));
    }

    /// Runs a script in the page and returns its value as text.
    fn text(&self, script: &str) -> String {
        let value = self.browser.run(script).unwrap_or_else(|error| panic!("{error:#}"));
        value.as_str().map_or_else(|| value.to_string(), str::to_owned)
    }
}
