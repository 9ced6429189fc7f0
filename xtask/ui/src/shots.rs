//! `cargo xtask shots`: the pictures of the dashboard in `docs/images`, from a running product with requests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::json;
use xtask_setup::build::{self, Profile};
use xtask_tools::{process, progress, workspace};

use crate::browser::{Browser, DESK, PHONE, Scheme, View};
use crate::stage::{Hosts, Product, Stage};
use crate::{objects, pages};

/// Text below the options in `shots --help`.
pub const AFTER_HELP: &str = "\
Needs Debian's packages chromium, chromium-driver and pngquant, which it installs as root. Everything runs on loopback.
Look at each picture before you commit it.

Examples:
  cargo xtask shots                     # rewrites docs/images/dashboard-*.png
  cargo xtask shots --to /tmp/pictures";

/// Program that reduces the colours of a picture, and Debian's package of it.
const REDUCER: &str = "pngquant";
/// Maximum size of a picture, in bytes.
const SIZE_MAX: u64 = 120_000;
/// Time of requests before the first picture, so that rates and lines have values.
const WARM_UP: Duration = Duration::from_secs(20);
/// Time on a page before its picture: several events of its stream.
const SETTLE: Duration = Duration::from_secs(8);
/// Pause between two requests.
const PAUSE: Duration = Duration::from_millis(8);
/// Requests of a visitor: host, path, and how many of each hundred.
const VISITS: [(&str, &str, usize); 10] = [
    (objects::SHOP, "/", 34),
    (objects::SHOP, "/api/items", 22),
    (objects::SHOP, "/status/404", 2),
    ("images.example.com", "/bytes/20000", 18),
    ("account.example.com", "/", 8),
    ("blog.example.com", "/", 7),
    ("main.preview.example.com", "/", 3),
    ("grafana.example.com", "/", 3),
    ("starting.example.com", "/", 2),
    ("refusing.example.com", "/", 1),
];

/// Take the pictures of the dashboard for the documentation
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory of the pictures instead of docs/images
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
}

/// A picture to take.
struct Shot {
    file: String,
    path: String,
    scheme: Scheme,
    view: View,
}

/// Runs `cargo xtask shots`.
///
/// # Errors
/// Fails if a program is missing or does not start, or a picture is too large.
pub fn run(args: &Args) -> Result<()> {
    let tools = xtask_setup::browser()?;
    xtask_setup::packages(&[REDUCER], "shots")?;
    let binary = build::userspace(Profile::Dev)?;
    let to = args.to.clone().unwrap_or_else(|| workspace::root().join("docs/images"));
    fs::create_dir_all(&to).with_context(|| format!("cannot make `{}`", to.display()))?;
    let scratch = tempfile::tempdir().context("cannot make a directory for logs and manifests")?;
    let stage = Stage::start(&binary, &tools, scratch.path(), &[Hosts::Few])?;
    let product = stage.plan.products.first().context("no product")?;
    let visitor = Visitor::start(product.clone());
    progress::note(&format!("requests for {} s before the first picture …", WARM_UP.as_secs()));
    thread::sleep(WARM_UP);
    let taken = take(&stage, product, &to);
    visitor.stop().and(taken)
}

fn take(stage: &Stage, product: &Product, to: &Path) -> Result<()> {
    let browser = Browser::open(&stage.plan)?;
    browser.devtools("Emulation.setScrollbarsHidden", json!({"hidden": true}))?;
    for Shot { file, path, scheme, view } in shots() {
        browser.resize(view)?;
        browser.prefer(scheme)?;
        browser.visit(&product.url(&path))?;
        thread::sleep(SETTLE);
        let file = to.join(file);
        fs::write(&file, browser.picture()?).with_context(|| format!("cannot write `{}`", file.display()))?;
        let mut reduce = Command::new(REDUCER);
        reduce.args(["--force", "--strip", "--speed=1", "--quality=70-100", "--output"]).arg(&file).arg(&file);
        process::capture(&mut reduce)?;
        let size = fs::metadata(&file)?.len();
        progress::note(&format!("{} {} kB", file.display(), size / 1000));
        ensure!(size <= SIZE_MAX, "`{}` has {size} bytes, more than {SIZE_MAX}", file.display());
    }
    Ok(())
}

/// Returns all pictures: each page in the light scheme, the overview in the dark one and as on a phone, too.
fn shots() -> Vec<Shot> {
    let shot = |name: &str, path: &str, scheme, view| Shot {
        file: format!("dashboard-{name}.png"),
        path: path.to_owned(),
        scheme,
        view,
    };
    let pages = pages::of_few();
    let mut shots: Vec<_> = pages.iter().map(|page| shot(page.name, &page.path, Scheme::Light, DESK)).collect();
    if let Some(overview) = pages.first() {
        shots.push(shot("overview-dark", &overview.path, Scheme::Dark, DESK));
        shots.push(shot("overview-phone", &overview.path, Scheme::Light, PHONE));
    }
    shots
}

/// A thread that sends requests until it is stopped.
struct Visitor {
    is_stopped: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Visitor {
    fn start(product: Product) -> Self {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&is_stopped);
        let began = Instant::now();
        let thread = thread::spawn(move || {
            for number in 0_usize.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let (host, path) = visit(number);
                product.request(host, path)?;
                // Rates that rise and fall look like those of people.
                let wave = (began.elapsed().as_secs_f64() / 9.0).sin().mul_add(0.5, 1.0);
                thread::sleep(PAUSE.mul_f64(wave));
            }
            Ok(())
        });
        Self { is_stopped, thread }
    }

    fn stop(self) -> Result<()> {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_panic| anyhow!("the visitor panicked"))?
    }
}

/// Returns host and path of the request of this number. Each hundred has the shares of [`VISITS`], mixed.
fn visit(number: usize) -> (&'static str, &'static str) {
    // 37 has no divisor in common with 100, so each hundred has each place once.
    let mut place = number * 37 % 100;
    for (host, path, share) in VISITS {
        if place < share {
            return (host, path);
        }
        place -= share;
    }
    (VISITS[0].0, VISITS[0].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_visits_are_of_a_hundred() {
        assert_eq!(VISITS.iter().map(|(_, _, share)| share).sum::<usize>(), 100);
        for (host, path, share) in VISITS {
            assert_eq!((0..100).filter(|number| visit(*number) == (host, path)).count(), share, "{host}{path}");
        }
    }

    #[test]
    fn every_page_has_a_picture() {
        let files: Vec<_> = shots().into_iter().map(|shot| shot.file).collect();
        assert_eq!(files.len(), pages::of_few().len() + 2);
        assert!(files.contains(&"dashboard-overview-dark.png".to_owned()));
    }
}
