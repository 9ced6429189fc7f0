//! A session of headless Chromium, driven through ChromeDriver by the WebDriver protocol (W3C), its extension for the
//! DevTools protocol, and its logs. The browser reaches no other machine.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::stage::Plan;
use crate::wire::{Method, Wire};

/// A name of this machine that is neither an IP address nor `localhost`, as a page of another origin could have it.
pub const FOREIGN: &str = "rebound.example.net";
/// Interval between two looks at a page.
const LOOK: Duration = Duration::from_millis(20);
/// Longest time that a script may take.
const SCRIPT_LIMIT: Duration = Duration::from_secs(60);

/// A colour scheme that the user prefers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    Light,
    Dark,
}

impl Scheme {
    /// Both schemes.
    pub const ALL: [Self; 2] = [Self::Light, Self::Dark];

    /// Returns the value of the media feature `prefers-color-scheme`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }
}

/// Size of the visible part of a page, in CSS pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    pub width: u32,
    pub height: u32,
    /// Whether the browser lays pages out as one of a phone does.
    pub is_phone: bool,
}

/// A window on a desk.
pub const DESK: View = View { width: 1280, height: 800, is_phone: false };
/// The narrowest phone in use.
pub const PHONE: View = View { width: 390, height: 844, is_phone: true };

/// An open browser, with one tab and an empty profile. Dropping the value closes it.
#[derive(Debug)]
pub struct Browser {
    wire: Wire,
    session: String,
}

impl Browser {
    /// Opens a browser of the stage as wide as a desk.
    ///
    /// # Errors
    /// Fails if ChromeDriver cannot start the browser.
    pub fn open(plan: &Plan) -> Result<Self> {
        let wire = Wire::new(plan.driver);
        let answer = wire.call(
            Method::Post,
            "/session",
            &json!({"capabilities": {"alwaysMatch": {
                "browserName": "chrome",
                "timeouts": {"script": SCRIPT_LIMIT.as_millis()},
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
                "goog:chromeOptions": {"binary": plan.chromium, "args": arguments()},
            }}}),
        )?;
        let session = answer["sessionId"].as_str().context("ChromeDriver opened no session")?;
        let browser = Self { wire, session: format!("/session/{session}") };
        browser.resize(DESK)?;
        Ok(browser)
    }

    /// Loads a page; returns when its load event has fired.
    ///
    /// # Errors
    /// Fails if the page cannot be loaded.
    pub fn visit(&self, url: &str) -> Result<()> {
        self.post("url", &json!({"url": url})).map(drop).with_context(|| format!("cannot load `{url}`"))
    }

    /// Runs the body of a function in the page; returns its value.
    ///
    /// # Errors
    /// Fails with the error that the script throws.
    pub fn run(&self, script: &str) -> Result<Value> {
        self.post("execute/sync", &json!({"script": script, "args": []}))
    }

    /// Runs the body of a function in the page, which passes a value to its last argument, a function; returns the
    /// value.
    ///
    /// # Errors
    /// Fails with the error that the script throws, or if it takes too long.
    pub fn run_async(&self, script: &str) -> Result<Value> {
        self.post("execute/async", &json!({"script": script, "args": []}))
    }

    /// Runs a script until it returns `true`. Returns the time that this took.
    ///
    /// # Errors
    /// Fails after `limit`, and if the script throws an error.
    pub fn wait(&self, limit: Duration, script: &str) -> Result<Duration> {
        let began = Instant::now();
        loop {
            if self.run(script)? == Value::Bool(true) {
                return Ok(began.elapsed());
            }
            ensure!(began.elapsed() < limit, "not within {} s: {script}", limit.as_secs_f32());
            thread::sleep(LOOK);
        }
    }

    /// Sends a command of the DevTools protocol.
    ///
    /// # Errors
    /// Fails if the browser refuses the command.
    pub fn devtools(&self, command: &str, parameters: Value) -> Result<Value> {
        self.post("goog/cdp/execute", &json!({"cmd": command, "params": parameters}))
    }

    /// Changes the visible part of pages.
    ///
    /// # Errors
    /// Fails if the browser refuses that.
    pub fn resize(&self, view: View) -> Result<()> {
        let View { width, height, is_phone } = view;
        let parameters = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone});
        self.devtools("Emulation.setDeviceMetricsOverride", parameters).map(drop)
    }

    /// Makes pages believe that the user prefers this scheme.
    ///
    /// # Errors
    /// Fails if the browser refuses that.
    pub fn prefer(&self, scheme: Scheme) -> Result<()> {
        let feature = json!({"name": "prefers-color-scheme", "value": scheme.name()});
        self.devtools("Emulation.setEmulatedMedia", json!({"features": [feature]})).map(drop)
    }

    /// Presses and releases a key, such as `Tab` or `Enter`, with the focus where it is.
    ///
    /// # Errors
    /// Fails if there is no such key here.
    pub fn press(&self, key: &str) -> Result<()> {
        // Code points of WebDriver, 17.4.2.
        let value = match key {
            "Tab" => '\u{E004}',
            "Enter" => '\u{E007}',
            other => bail!("no key `{other}`"),
        };
        let press = |kind: &str| json!({"type": kind, "value": value});
        let source = json!({"type": "key", "id": "keyboard", "actions": [press("keyDown"), press("keyUp")]});
        self.post("actions", &json!({"actions": [source]})).map(drop)
    }

    /// Returns the visible part of the page as a PNG file.
    ///
    /// # Errors
    /// Fails if the browser makes no picture.
    pub fn picture(&self) -> Result<Vec<u8>> {
        let text = self.wire.call(Method::Get, &format!("{}/screenshot", self.session), &Value::Null)?;
        BASE64_STANDARD.decode(text.as_str().context("no picture")?).context("the picture is not in base64")
    }

    /// Returns and forgets the messages of the console, such as errors of scripts, refused contents and failed requests.
    ///
    /// # Errors
    /// Fails if ChromeDriver does not answer.
    pub fn console(&self) -> Result<Vec<String>> {
        let text = |entry: &Value| format!("{}: {}", entry["level"], entry["message"]);
        Ok(self.log("browser")?.iter().map(text).collect())
    }

    /// Returns and forgets the URLs that the browser has requested.
    ///
    /// # Errors
    /// Fails if ChromeDriver does not answer.
    pub fn requests(&self) -> Result<Vec<String>> {
        let mut urls = Vec::new();
        for entry in self.log("performance")? {
            let event: Value = serde_json::from_str(entry["message"].as_str().unwrap_or_default())?;
            let is_request = event.pointer("/message/method").is_some_and(|name| name == "Network.requestWillBeSent");
            if is_request && let Some(url) = event.pointer("/message/params/request/url").and_then(Value::as_str) {
                urls.push(url.to_owned());
            }
        }
        Ok(urls)
    }

    /// Runs axe-core on the page and returns its violations, one for each line.
    ///
    /// # Errors
    /// Fails if the script cannot be read, or does not run.
    pub fn violations(&self, axe: &Path) -> Result<Vec<String>> {
        let script = std::fs::read_to_string(axe).with_context(|| format!("cannot read `{}`", axe.display()))?;
        self.run(&script)?;
        let answer = self.run_async(
            "const done = arguments[arguments.length - 1];
             axe.run(document, {resultTypes: ['violations']}).then(
                 result => done(result.violations.map(violation => ({
                     id: violation.id, help: violation.help, nodes: violation.nodes.map(node => node.html),
                 }))),
                 error => done(String(error)))",
        )?;
        let violations = answer.as_array().with_context(|| format!("axe-core failed: {answer}"))?;
        let line = |found: &Value| format!("{}: {} {}", found["id"], found["help"], found["nodes"]);
        Ok(violations.iter().map(line).collect())
    }

    fn log(&self, kind: &str) -> Result<Vec<Value>> {
        let answer = self.post("se/log", &json!({"type": kind}))?;
        Ok(answer.as_array().context("the log is not a list")?.clone())
    }

    fn post(&self, command: &str, body: &Value) -> Result<Value> {
        self.wire.call(Method::Post, &format!("{}/{command}", self.session), body)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // A browser that cannot be closed has ended, or the stage closes it.
        drop(self.wire.call(Method::Delete, &self.session, &Value::Null));
    }
}

/// Closes the browsers that are open, as far as ChromeDriver answers.
pub(crate) fn close_all(plan: &Plan) {
    let wire = Wire::new(plan.driver);
    let Ok(sessions) = wire.call(Method::Get, "/sessions", &Value::Null) else { return };
    for session in sessions.as_array().into_iter().flatten() {
        if let Some(id) = session["id"].as_str() {
            drop(wire.call(Method::Delete, &format!("/session/{id}"), &Value::Null));
        }
    }
}

/// Returns the arguments of Chromium.
fn arguments() -> Vec<String> {
    let rules = format!("--host-resolver-rules=MAP {FOREIGN} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1");
    let own = ["--force-device-scale-factor=1", "--font-render-hinting=none", &rules];
    xtask_setup::HEADLESS.into_iter().chain(own).map(str::to_owned).collect()
}
