//! Programs of other peers with HTTP/3: those of this machine, else Debian's newer ones, unpacked into the cache with
//! all of their libraries. Nothing is installed.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};

use super::{
    Peer,
    packages::{HAPROXY, NGINX, WITH_CADDY},
};
use xtask_setup::{
    apt::PrivateApt,
    cache::{self, Cache},
    debian::Recorded,
};
use xtask_tools::{process, progress, workspace};

/// Programs of other peers than the product.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    /// Words that start a program with HTTP/3.
    http3: BTreeMap<Peer, Vec<String>>,
    /// Peers without such a program, each with the reason.
    missing: BTreeMap<Peer, String>,
}

/// A program of Debian's with its libraries.
#[derive(Debug)]
struct Unpacked {
    /// The package of the program, and those of all libraries.
    packages: &'static [Recorded<'static>],
    /// Path of the program in its package.
    program: &'static str,
}

// === impl Programs ===

impl Programs {
    /// Finds programs with HTTP/3 for those of `peers` that are not builds of the product; unpacks missing ones. A peer
    /// that cannot be had is reported and left out.
    pub(crate) fn with_http3(peers: &[Peer]) -> Self {
        let mut programs = Self::default();
        for peer in peers.iter().copied().filter(|peer| !peer.is_ours()) {
            match with_http3(peer) {
                Ok(words) => drop(programs.http3.insert(peer, words)),
                Err(error) => {
                    let reason = format!("{error:#}");
                    progress::warn(&format!("{peer} with HTTP/3 cannot be had here and is not measured: {reason}"));
                    programs.missing.insert(peer, reason);
                }
            }
        }
        programs
    }

    /// Returns `true` if the peer can be started. Caddy is the same program with and without HTTP/3.
    pub(crate) fn has(&self, peer: Peer, http3: bool) -> bool {
        peer.is_ours() || (!http3 && peer != Peer::Caddy) || self.http3.contains_key(&peer)
    }

    /// Returns a sentence about each of `peers` that cannot be started, or an empty text.
    pub(crate) fn missing(&self, peers: &[Peer], http3: bool) -> String {
        let absent = peers.iter().filter(|peer| !self.has(**peer, http3));
        let reason = |peer| self.missing.get(peer).and_then(|reason| reason.lines().next()).unwrap_or("not looked for");
        absent.map(|peer| format!("Not measured: {peer} ({}).\n\n", reason(peer))).collect()
    }

    /// Returns the words that start the program of a peer that is not a build of the product.
    ///
    /// # Errors
    /// Fails if there is none.
    pub(crate) fn words(&self, peer: Peer, http3: bool) -> anyhow::Result<Vec<String>> {
        if !http3 && peer != Peer::Caddy {
            return Ok(vec![peer.to_string()]);
        }
        self.http3.get(&peer).cloned().with_context(|| format!("there is no {peer} with HTTP/3 here"))
    }
}

/// Returns the words of the program.
fn with_http3(peer: Peer) -> anyhow::Result<Vec<String>> {
    let name = peer.to_string();
    if process::find_program(&name).is_some() {
        let words = vec![name.clone()];
        if serves_http3(peer, &words)? {
            return Ok(words);
        }
    }
    let unpacked = Unpacked::of(peer).with_context(|| format!("{peer} is not a program of Debian's"))?;
    let place = cache::kept(&name, || unpacked.find(), |cache| unpacked.install(cache, peer))?;
    unpacked.words(&place)
}

/// Returns whether a program was built with HTTP/3. Caddy has it since 2.6.
fn serves_http3(peer: Peer, words: &[String]) -> anyhow::Result<bool> {
    let (argument, sign) = match peer {
        Peer::Nginx => ("-V", "--with-http_v3_module"),
        Peer::Haproxy => ("-vv", " +QUIC "),
        _ => ("version", "."),
    };
    Ok(said(words, argument)?.contains(sign))
}

/// Returns the output of a program with one argument; nginx prints on its standard error.
///
/// # Errors
/// If the program cannot be started, or fails.
pub(crate) fn said(words: &[String], argument: &str) -> anyhow::Result<String> {
    let (program, more) = words.split_first().context("a command without words")?;
    let output = Command::new(program).args(more).arg(argument).output();
    let output = output.with_context(|| format!("cannot start `{}`", words.join(" ")))?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    ensure!(output.status.success(), "`{} {argument}` failed: {}", words.join(" "), text.trim());
    Ok(text)
}

// === impl Unpacked ===

impl Unpacked {
    fn of(peer: Peer) -> Option<Self> {
        Some(match peer {
            Peer::Nginx => Self { packages: &NGINX, program: "usr/sbin/nginx" },
            Peer::Haproxy => Self { packages: &HAPROXY, program: "usr/sbin/haproxy" },
            Peer::Caddy => Self { packages: &WITH_CADDY, program: "usr/bin/caddy" },
            Peer::XdpIngress | Peer::Again | Peer::Before => return None,
        })
    }

    /// Returns the name in the cache, with the version of the program.
    fn name(&self) -> String {
        let versions = self.packages.first().map(|Recorded { name, version, .. }| format!("{name}-{version}"));
        format!("peer-{}", versions.unwrap_or_default())
    }

    fn find(&self) -> anyhow::Result<Option<PathBuf>> {
        let place = workspace::cache_dir()?.join(self.name());
        Ok(place.join(self.program).is_file().then_some(place))
    }

    fn install(&self, cache: &Cache, peer: Peer) -> anyhow::Result<()> {
        let index = cache.install("debian-index", |work| {
            let mut apts: BTreeMap<&str, PrivateApt> = BTreeMap::new();
            for Recorded { suite, .. } in self.packages {
                if !apts.contains_key(suite) {
                    apts.insert(suite, PrivateApt::open(&work.join(suite), suite)?);
                }
            }
            cache.install(&self.name(), |staging| {
                for package in self.packages {
                    package.unpack(apts.get(package.suite).context("an index that was not read")?, staging)?;
                }
                let words = self.words(staging)?;
                ensure!(serves_http3(peer, &words)?, "Debian's {peer} has no HTTP/3, or does not run here");
                Ok(())
            })?;
            Ok(())
        })?;
        fs::remove_dir_all(&index).with_context(|| format!("cannot remove `{}`", index.display()))
    }

    /// Returns the words: the dynamic linker of the unpacked C library, which finds all libraries beside itself
    /// (ld.so(8)), and the program. This machine's libraries may be older than the program needs.
    fn words(&self, place: &Path) -> anyhow::Result<Vec<String>> {
        let linker = linker(&place.join("usr/lib")).context("Debian's C library has no dynamic linker")?;
        let libraries = linker.parent().context("a dynamic linker without a directory")?;
        let program = place.join(self.program);
        let [linker, libraries, program] = [&linker, libraries, &program].map(|path| path.display().to_string());
        Ok(vec![linker, "--library-path".into(), libraries, program])
    }
}

/// Returns the dynamic linker below `lib`, in a directory such as `x86_64-linux-gnu`.
fn linker(lib: &Path) -> Option<PathBuf> {
    let entries = |path: &Path| {
        let entries = fs::read_dir(path).into_iter().flatten();
        entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect::<Vec<_>>()
    };
    let is_linker =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-linux"));
    entries(lib).iter().filter(|path| path.is_dir()).flat_map(|path| entries(path)).find(is_linker)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_the_cache_have_versions() {
        for (peer, expect) in [
            (Peer::Nginx, "peer-nginx-1.26.3-3+deb13u10"),
            (Peer::Haproxy, "peer-haproxy-3.0.11-1+deb13u4"),
            (Peer::Caddy, "peer-caddy-2.11.2-1~bpo13+1"),
        ] {
            assert_eq!(Unpacked::of(peer).expect("a program").name(), expect);
        }
        assert!(Unpacked::of(Peer::XdpIngress).is_none());
    }

    #[test]
    fn programs_run_with_the_libraries_beside_their_own_linker() {
        let place = tempfile::tempdir().expect("a folder");
        let lib = place.path().join("usr/lib/x86_64-linux-gnu");
        let unpacked = Unpacked::of(Peer::Nginx).expect("a program");
        fs::create_dir_all(&lib).expect("a folder");
        assert!(unpacked.words(place.path()).is_err(), "no linker");
        fs::write(lib.join("ld-linux-x86-64.so.2"), "").expect("a file");
        let root = place.path().display();
        let lib = lib.display();
        let expect = format!("{lib}/ld-linux-x86-64.so.2 --library-path {lib} {root}/usr/sbin/nginx");
        assert_eq!(unpacked.words(place.path()).expect("words").join(" "), expect);
    }

    #[test]
    fn a_peer_that_cannot_be_had_is_named_with_the_reason() {
        let mut programs = Programs::default();
        programs.http3.insert(Peer::Nginx, vec!["nginx".into()]);
        programs.missing.insert(Peer::Haproxy, "no mirror\nmore".into());
        let all = [Peer::Nginx, Peer::Haproxy, Peer::XdpIngress];
        assert_eq!(programs.missing(&all, true), "Not measured: haproxy (no mirror).\n\n");
        assert_eq!(programs.missing(&all, false), "");
        assert!(programs.words(Peer::Haproxy, true).is_err());
        assert_eq!(programs.words(Peer::Haproxy, false).expect("words"), ["haproxy"]);
        assert!(!programs.has(Peer::Caddy, false) && programs.has(Peer::Again, true));
    }
}
