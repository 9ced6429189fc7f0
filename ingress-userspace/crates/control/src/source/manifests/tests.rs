//! Tests of the source on real directories: every wait is for a condition, with a deadline.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::Write as _,
    os::unix::fs::symlink,
    sync::atomic::{AtomicUsize, Ordering},
};

use tempfile::TempDir;

use super::*;
use crate::{Origin, change::Change};

/// State of a watcher of the directory.
struct Watcher {
    root: TempDir,
    batches: mpsc::Receiver<Batch>,
    task: JoinHandle<Result<(), SourceError>>,
    /// Objects with the file they came from.
    objects: BTreeMap<String, String>,
    remarks: Vec<String>,
    /// Every removal that was ever sent.
    removals: Vec<String>,
}

// === impl Watcher ===

impl Watcher {
    /// Follows a directory that holds `files`, and has read it once.
    async fn start(files: &[(&str, &str)]) -> Self {
        let root = TempDir::new().expect("a directory");
        for (name, text) in files {
            fs::write(root.path().join(name), text).expect("a file");
        }
        let (sender, batches) = crate::source::queue();
        let task = tokio::spawn(watch(root.path().into(), sender));
        let mut watcher =
            Self { root, batches, task, objects: BTreeMap::new(), remarks: Vec::new(), removals: Vec::new() };
        watcher.next().await;
        watcher
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("a file");
    }

    async fn next(&mut self) {
        let batch = time::timeout(Duration::from_secs(10), self.batches.recv()).await;
        let Batch { changes, remarks, unread: _, received: _ } =
            batch.expect("a batch in time").expect("the source goes on");
        for change in changes {
            match change {
                Change::Apply { object, origin } => {
                    let origin = match origin {
                        Origin::File(path) => path.display().to_string(),
                        Origin::Api => String::new(),
                    };
                    let origin = origin.rsplit('/').next().unwrap_or_default().to_owned();
                    self.objects.insert(object.id().name.to_string(), origin);
                }
                Change::Remove(id) => {
                    self.objects.remove(&id.name.to_string());
                    self.removals.push(id.name.to_string());
                }
                Change::Resolve { .. } | Change::Forget { .. } => panic!("manifests resolve no names"),
            }
        }
        if let Some(remarks) = remarks {
            self.remarks = remarks.iter().map(ToString::to_string).collect();
        }
    }

    /// Waits until exactly these objects are known, and there are as many remarks as `remarks`, each of which contains
    /// its text.
    async fn until(&mut self, objects: &[&str], remarks: &[&str]) {
        let fits = |this: &Self| {
            let fits = |(remark, text): (&String, &&str)| remark.contains(*text);
            this.objects.keys().map(|name| name.trim_start_matches("default/")).eq(objects.iter().copied())
                && this.remarks.len() == remarks.len()
                && this.remarks.iter().zip(remarks).all(fits)
        };
        while !fits(self) {
            let before = format!("{:?} {:?}", self.objects, self.remarks);
            let next = time::timeout(Duration::from_secs(10), self.next()).await;
            assert!(next.is_ok(), "waiting for {objects:?} {remarks:?}, have {before}");
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn service(name: &str) -> String {
    format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n---\n")
}

#[tokio::test]
async fn a_directory_that_does_not_exist_is_an_error_at_the_start() {
    let (sender, _batches) = crate::source::queue();
    let error = watch("/nonexistent/manifests".into(), sender).await.expect_err("no directory");
    assert!(error.to_string().contains("`/nonexistent/manifests`"), "{error}");
}

#[tokio::test]
async fn an_empty_directory_yields_an_empty_batch() {
    let watcher = Watcher::start(&[]).await;
    assert!(watcher.objects.is_empty() && watcher.remarks.is_empty());
}

#[tokio::test]
async fn files_are_added_changed_and_removed() {
    let mut watcher = Watcher::start(&[("a.yaml", &service("a")), ("ignored.txt", &service("x"))]).await;
    watcher.until(&["a"], &[]).await;
    watcher.write("b.yml", &(service("b") + &service("c")));
    watcher.until(&["a", "b", "c"], &[]).await;
    watcher.write("b.yml", &service("c"));
    watcher.until(&["a", "c"], &[]).await;
    fs::remove_file(watcher.path("a.yaml")).expect("removed");
    watcher.until(&["c"], &[]).await;
    fs::create_dir_all(watcher.path("deep/er")).expect("created");
    watcher.write("deep/er/d.json", r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "d"}}"#);
    watcher.until(&["c", "d"], &[]).await;
    fs::remove_dir_all(watcher.path("deep")).expect("removed");
    watcher.until(&["c"], &[]).await;
}

#[tokio::test]
async fn a_broken_file_keeps_its_last_good_objects() {
    let mut watcher = Watcher::start(&[("a.yaml", &(service("a") + &service("b"))), ("z.yaml", &service("z"))]).await;
    watcher.write("a.yaml", "kind: [");
    watcher.until(&["a", "b", "z"], &["warning InvalidObject File ("]).await;
    // The valid part of a partly broken file is used.
    watcher.write("a.yaml", &(service("a") + "kind: [\n---\n" + &service("c")));
    watcher.until(&["a", "b", "c", "z"], &["document 2, line 5: "]).await;
    watcher.write("a.yaml", &service("c"));
    watcher.until(&["c", "z"], &[]).await;
    watcher.write("a.yaml", "\u{fffd}");
    fs::write(watcher.path("a.yaml"), [0xff, 0xfe, 0xff]).expect("a file");
    watcher.until(&["c", "z"], &["cannot be read"]).await;
    assert_eq!(watcher.removals, ["default/a", "default/b"]);
}

#[tokio::test]
async fn a_file_put_in_place_by_renaming_is_read() {
    let mut watcher = Watcher::start(&[("a.yaml", &service("a"))]).await;
    watcher.write(".a.yaml.tmp", &service("b"));
    fs::rename(watcher.path(".a.yaml.tmp"), watcher.path("a.yaml")).expect("renamed");
    watcher.until(&["b"], &[]).await;
}

#[tokio::test]
async fn a_config_map_swapped_by_its_link_is_read() {
    let root = TempDir::new().expect("a directory");
    let version = |number: u32, text: &str| {
        let directory = root.path().join(format!("..{number}"));
        fs::create_dir(&directory).expect("created");
        fs::write(directory.join("a.yaml"), text).expect("a file");
        let link = root.path().join("..data_tmp");
        symlink(format!("..{number}"), &link).expect("linked");
        fs::rename(link, root.path().join("..data")).expect("renamed");
    };
    version(1, &service("a"));
    symlink("..data/a.yaml", root.path().join("a.yaml")).expect("linked");
    let (sender, batches) = crate::source::queue();
    let task = tokio::spawn(watch(root.path().into(), sender));
    let unused = TempDir::new().expect("a directory");
    let mut watcher =
        Watcher { root: unused, batches, task, objects: BTreeMap::new(), remarks: Vec::new(), removals: Vec::new() };
    watcher.until(&["a"], &[]).await;
    version(2, &service("b"));
    watcher.until(&["b"], &[]).await;
}

#[tokio::test]
async fn the_first_file_in_order_of_paths_has_an_object() {
    let mut watcher = Watcher::start(&[("b.yaml", &service("a")), ("c.yaml", &service("a"))]).await;
    watcher.until(&["a"], &["warning DuplicateObject Service default/a ("]).await;
    assert_eq!(watcher.objects["default/a"], "b.yaml");
    watcher.write("a.yaml", &service("a"));
    let twice = ["DuplicateObject"; 2];
    watcher.until(&["a"], &twice).await;
    assert_eq!(watcher.objects["default/a"], "a.yaml");
    fs::remove_file(watcher.path("a.yaml")).expect("removed");
    fs::remove_file(watcher.path("b.yaml")).expect("removed");
    watcher.until(&["a"], &[]).await;
    assert_eq!(watcher.objects["default/a"], "c.yaml");
    assert!(watcher.removals.is_empty(), "an object that another file holds is never gone");
}

#[tokio::test]
async fn a_half_written_file_removes_nothing() {
    let mut watcher = Watcher::start(&[("a.yaml", &(service("a") + &service("b0")))]).await;
    for round in 0..20 {
        let (old, new, other) = (format!("b{round}"), format!("b{}", round + 1), format!("c{round}"));
        let mut file = OpenOptions::new().write(true).truncate(true).open(watcher.path("a.yaml")).expect("opened");
        file.write_all(service("a").as_bytes()).expect("written");
        // Another file changes while this one is half written.
        watcher.write("other.yaml", &service(&other));
        watcher.until(&["a", &old, &other], &[]).await;
        file.write_all(service(&new).as_bytes()).expect("written");
        drop(file);
        watcher.until(&["a", &new, &other], &[]).await;
    }
    assert!(!watcher.removals.iter().any(|name| name == "default/a"), "{:?}", watcher.removals);
}

#[test]
fn a_file_that_changes_during_a_read_keeps_its_objects() {
    let root = TempDir::new().expect("a directory");
    let path = root.path().join("a.yaml");
    fs::write(&path, service("a")).expect("a file");
    let mut directory = Directory::open(root.path()).expect("a directory");
    directory.scan(&HashSet::new(), |_| false).expect("changes");
    fs::write(&path, service("a") + "kind: [").expect("a torn one");
    let (asked, named) = (AtomicUsize::new(0), HashSet::from([path.clone()]));
    // inotify, which is asked before and after, does not know yet.
    let update = directory.update(&named, Losses::Doubt, |_| {
        if asked.fetch_add(1, Ordering::Relaxed) == 1 {
            fs::write(&path, service("a") + &service("b")).expect("a file");
        }
        false
    });
    assert!(update.batch.is_none() && update.in_doubt.is_empty(), "{update:?}");
    assert!(directory.update(&named, Losses::Doubt, |_| false).batch.is_some());
}

#[test]
fn a_scan_skips_files_that_were_read_after_it() {
    let root = TempDir::new().expect("a directory");
    let file = |name: &str| root.path().join(name);
    for name in ["a.yaml", "b.yaml", "c.yaml"] {
        fs::write(file(name), service(&name[..1])).expect("a file");
    }
    let mut directory = Directory::open(root.path()).expect("a directory");
    directory.scan(&HashSet::new(), |_| false).expect("changes");
    for name in ["a.yaml", "b.yaml"] {
        fs::write(file(name), service("other")).expect("a file");
    }
    fs::remove_file(file("c.yaml")).expect("removed");
    let (path, seen) = directory.view();
    let found = look(&path, &seen);
    directory.update(&HashSet::from([file("a.yaml"), file("c.yaml")]), Losses::Accept, |_| false);
    assert_eq!(directory.take_in(found), HashSet::from([file("b.yaml")]));
}

#[test]
fn a_removed_directory_keeps_its_objects_until_it_is_replaced() {
    let outer = TempDir::new().expect("a directory");
    let root = outer.path().join("manifests");
    fs::create_dir(&root).expect("created");
    fs::write(root.join("a.yaml"), service("a")).expect("a file");
    let mut directory = Directory::open(&root).expect("a directory");
    let nothing = HashSet::new();
    assert_eq!(directory.scan(&nothing, |_| false).map(|batch| batch.changes.len()), Some(1));
    fs::rename(&root, outer.path().join("elsewhere")).expect("renamed");
    let batch = directory.scan(&nothing, |_| false).expect("a remark");
    assert!(batch.changes.is_empty() && batch.remarks.is_some_and(|remarks| remarks.len() == 1));
    fs::create_dir(&root).expect("created");
    fs::write(root.join("b.yaml"), service("b")).expect("a file");
    let batch = directory.scan(&nothing, |_| false).expect("changes");
    assert!(batch.changes.len() == 2 && directory.was_replaced());
    assert!(directory.scan(&nothing, |_| false).is_none(), "nothing changed");
}

#[test]
fn slow_scans_are_spaced_out_up_to_a_limit() {
    for (took, pause) in [(0, 2000), (20, 2000), (200, 20_000), (30_000, 60_000)] {
        assert_eq!(super::pause(Duration::from_millis(took)), Duration::from_millis(pause), "{took} ms");
    }
}

#[test]
fn only_the_named_files_are_read() {
    let outer = TempDir::new().expect("a directory");
    let root = outer.path().join("manifests");
    let write = |name: &str, services: &[&str]| {
        let text: String = services.iter().map(|name| service(name)).collect();
        fs::write(root.join(name), text).expect("a file");
    };
    fs::create_dir(&root).expect("created");
    write("a.yaml", &["a"]);
    write("b.yaml", &["b"]);
    let mut directory = Directory::open(&root).expect("a directory");
    directory.scan(&HashSet::new(), |_| false).expect("changes");

    let mut step = |names: &[&str], losses: Losses, expect: &[&str], in_doubt: &[&str], is_blind: bool| {
        let named: HashSet<_> = names.iter().map(|name| root.join(name)).collect();
        let update = directory.update(&named, losses, |_| false);
        let changes = update.batch.map(|batch| batch.changes).unwrap_or_default().into_iter();
        let changes: Vec<_> = changes
            .map(|change| match change {
                Change::Apply { object, origin: _ } => format!("+{}", object.id().name.name),
                Change::Remove(id) => format!("-{}", id.name.name),
                Change::Resolve { .. } | Change::Forget { .. } => panic!("manifests resolve no names"),
            })
            .collect();
        let expected: HashSet<_> = in_doubt.iter().map(|name| root.join(name)).collect();
        assert_eq!(changes, expect, "{names:?} {losses:?}");
        assert_eq!((update.in_doubt, update.is_blind), (expected, is_blind), "{names:?} {losses:?}");
    };
    let (doubt, accept) = (Losses::Doubt, Losses::Accept);
    write("a.yaml", &["a", "a2"]);
    write("b.yaml", &["b", "b2"]);
    step(&["a.yaml"], doubt, &["+a2"], &[], false);
    step(&["a.yaml"], doubt, &[], &[], false);
    for name in [".hidden.yaml", "notes.txt"] {
        write(name, &["x"]);
    }
    step(&[".hidden.yaml", "notes.txt", "nothing.yaml", "../elsewhere.yaml"], doubt, &[], &[], false);
    symlink("..1", root.join("..data")).expect("linked");
    step(&["..data"], doubt, &[], &[], true);
    step(&[""], doubt, &[], &[], true);

    write("a.yaml", &["a2"]);
    step(&["a.yaml"], doubt, &[], &["a.yaml"], false);
    step(&["a.yaml"], accept, &["-a"], &[], false);
    // A file that was moved over another is complete.
    fs::rename(root.join("notes.txt"), root.join("b.yaml")).expect("renamed");
    step(&["notes.txt", "b.yaml"], doubt, &["-b", "+x"], &[], false);
    fs::remove_file(root.join("a.yaml")).expect("removed");
    step(&["a.yaml"], doubt, &[], &["a.yaml"], false);
    step(&["a.yaml"], accept, &["-a2"], &[], false);

    fs::create_dir_all(root.join("deep/er")).expect("created");
    write("deep/er/c.yaml", &["c"]);
    step(&["deep"], doubt, &["+c"], &["deep"], false);
    fs::rename(root.join("deep"), outer.path().join("deep")).expect("renamed");
    symlink(outer.path().join("deep"), root.join("deep")).expect("linked");
    step(&["deep/er/c.yaml"], doubt, &[], &[], false);
    fs::remove_file(root.join("deep")).expect("removed");
    step(&["deep"], accept, &["-c"], &[], false);
    fs::create_dir(root.join("sub")).expect("created");
    write("sub/d.yaml", &["d"]);
    write("sub/e.yaml", &["e"]);
    step(&["sub"], doubt, &["+d", "+e"], &["sub"], false);
    fs::create_dir(outer.path().join("new")).expect("created");
    fs::write(outer.path().join("new/d.yaml"), service("d")).expect("a file");
    fs::rename(root.join("sub"), outer.path().join("old")).expect("renamed");
    fs::rename(outer.path().join("new"), root.join("sub")).expect("renamed");
    step(&["sub"], doubt, &[], &["sub"], false);
    step(&["sub"], accept, &["-e"], &["sub"], false);
    // Objects stay while the directory itself is gone.
    fs::rename(&root, outer.path().join("elsewhere")).expect("renamed");
    step(&["b.yaml"], accept, &[], &[], false);
}

#[test]
fn a_moved_file_does_not_duplicate_its_objects() {
    let root = TempDir::new().expect("a directory");
    let path = |name: &str| root.path().join(name);
    fs::write(path("a.yaml"), service("s")).expect("a file");
    let mut directory = Directory::open(root.path()).expect("a directory");
    directory.scan(&HashSet::new(), |_| false).expect("changes");

    fs::rename(path("a.yaml"), path("c.yaml")).expect("renamed");
    let named = HashSet::from([path("a.yaml"), path("c.yaml")]);
    let Update { batch, in_doubt, is_blind: _ } = directory.update(&named, Losses::Doubt, |_| false);
    assert!(batch.is_none(), "{batch:?}");
    assert_eq!(in_doubt, HashSet::from([path("a.yaml")]));
    let Batch { changes, remarks, unread: _, received: _ } =
        directory.update(&in_doubt, Losses::Accept, |_| false).batch.expect("another origin");
    let [Change::Apply { object: _, origin: Origin::File(origin) }] = changes.as_slice() else {
        panic!("not one object: {changes:?}")
    };
    assert_eq!(**origin, *path("c.yaml"));
    assert_eq!(remarks, Some(Vec::new()));
}

#[tokio::test]
async fn a_replaced_directory_is_followed_without_a_watch() {
    const REFUSED: usize = 2;
    let outer = TempDir::new().expect("a directory");
    let root = outer.path().join("manifests");
    fs::create_dir(&root).expect("created");
    fs::write(root.join("a.yaml"), service("a")).expect("a file");
    let starts = Arc::new(AtomicUsize::new(0));
    let start = {
        let starts = Arc::clone(&starts);
        move |root: &Path, signals: &Arc<Signals>| match starts.fetch_add(1, Ordering::SeqCst) {
            1..=REFUSED => Err(SourceError::Watch { path: root.into(), source: notify::Error::generic("used up") }),
            _ => FileWatch::start(root, signals),
        }
    };
    let (sender, batches) = crate::source::queue();
    let task = tokio::spawn(watch_with(root.clone(), sender, start));
    let mut watcher =
        Watcher { root: outer, batches, task, objects: BTreeMap::new(), remarks: Vec::new(), removals: Vec::new() };
    watcher.until(&["a"], &[]).await;
    fs::rename(&root, watcher.path("elsewhere")).expect("renamed");
    fs::create_dir(&root).expect("created");
    fs::write(root.join("b.yaml"), service("b")).expect("a file");
    watcher.until(&["b"], &[]).await;
    // Not watched, but looked at.
    fs::write(root.join("c.yaml"), service("c")).expect("a file");
    watcher.until(&["b", "c"], &[]).await;
    let deadline = Instant::now() + Duration::from_secs(20);
    for round in 0.. {
        let is_watched = starts.load(Ordering::SeqCst) == REFUSED + 2;
        let name = format!("d{round}");
        fs::write(root.join("c.yaml"), service(&name)).expect("a file");
        watcher.until(&["b", &name], &[]).await;
        if is_watched {
            break;
        }
        assert!(Instant::now() < deadline, "it is watched again when that is possible");
    }
    assert_eq!(starts.load(Ordering::SeqCst), REFUSED + 2, "a watch that works is kept");
}
