//! Certificates ready for handshakes, by the server name that selects them. It does not choose protocol versions or
//! ciphers.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    ops::Range,
    sync::Arc,
    time::Duration,
};

use rustls::{crypto::CryptoProvider, sign::CertifiedKey};
use rustls_pki_types::UnixTime;

use crate::{
    model::{Certificate, HostPattern, Staple, Tree, host, tree::Difference},
    route::Names,
};

/// All certificates of a snapshot.
#[derive(Clone, Default)]
pub struct Certificates {
    exact: Names<Loaded>,
    /// Keyed by the name after `*.`.
    wildcard: Names<Loaded>,
    any: Option<Loaded>,
    /// What serves names without a usable certificate.
    fallback: Option<Loaded>,
    /// What they were loaded from.
    source: Tree<HostPattern, Option<Arc<Certificate>>>,
    /// By the name that is without its certificate; `None` for the fallback.
    problems: BTreeMap<Option<HostPattern>, CertificateProblem>,
}

/// A certificate that cannot be used; its names are served with the fallback certificate meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CertificateProblem {
    /// [`Certificate::origin`].
    pub origin: Arc<str>,
    pub reason: String,
}

#[derive(Clone, Default)]
struct Loaded {
    /// `None` if the name has no certificate.
    source: Option<Arc<Certificate>>,
    /// `None` if there is no certificate, or it cannot be used: the fallback stands in, rather than a less specific
    /// certificate.
    key: Option<Arc<CertifiedKey>>,
    /// The same with what its issuer says of it.
    stapled: Option<Stapled>,
}

#[derive(Clone)]
struct Stapled {
    key: Arc<CertifiedKey>,
    /// As times since 1970.
    holds: Range<Duration>,
}

impl Certificates {
    /// Loads what `previous` does not hold already; returns all problems, also those that `previous` had.
    pub(super) fn load(
        previous: Option<&Self>,
        table: &Tree<HostPattern, Option<Arc<Certificate>>>,
        fallback: Option<&Arc<Certificate>>,
    ) -> (Self, Vec<CertificateProblem>) {
        let provider = super::tls::provider();
        let mut certificates = previous.cloned().unwrap_or_default();
        // One Secret usually serves several names.
        let mut loaded: HashMap<*const Certificate, (Loaded, Option<CertificateProblem>)> = HashMap::new();
        let mut load = |source: &Arc<Certificate>| {
            let loaded = loaded.entry(Arc::as_ptr(source)).or_insert_with(|| {
                let (key, problem) = match load(source, &provider) {
                    Ok(key) => (Some(key), None),
                    Err(reason) => (None, Some(CertificateProblem { origin: Arc::clone(&source.origin), reason })),
                };
                let stapled = key.as_ref().and_then(|key| Some(Stapled::of(key, source.staple.as_ref()?)));
                (Loaded { source: Some(Arc::clone(source)), key: key.map(Arc::new), stapled }, problem)
            });
            loaded.clone()
        };
        let known = std::mem::replace(&mut certificates.source, table.clone());
        for Difference { key: pattern, old: _, new } in known.differences(table) {
            let (entry, problem) = match new {
                None => (None, None),
                Some(None) => (Some(Loaded::default()), None),
                Some(Some(source)) => {
                    let (entry, problem) = load(source);
                    (Some(entry), problem)
                }
            };
            certificates.set(pattern, entry);
            certificates.note(Some(pattern), problem);
        }
        let known = certificates.fallback.as_ref().and_then(|fallback| fallback.source.as_ref());
        if known != fallback {
            let (entry, problem) = fallback.map(load).unzip();
            certificates.fallback = entry;
            certificates.note(None, problem.flatten());
        }
        let problems: BTreeSet<_> = certificates.problems.values().cloned().collect();
        (certificates, problems.into_iter().collect())
    }

    /// The certificate for a server name in lower case; `None` if there is neither one nor a usable fallback.
    pub(super) fn find(&self, name: Option<&str>) -> Option<Arc<CertifiedKey>> {
        let own = name.and_then(|name| self.named(name)).or(self.any.as_ref()).and_then(Loaded::current);
        own.or_else(|| self.fallback.as_ref()?.current())
    }

    /// Whether a host of this name, in lower case, has a certificate of its own or should have.
    pub(super) fn names(&self, name: &str) -> bool {
        self.named(name).is_some()
    }

    fn named(&self, name: &str) -> Option<&Loaded> {
        let wildcard = || self.wildcard.get(host::parent(name).filter(|_| !name.starts_with('.'))?);
        self.exact.get(name).or_else(wildcard)
    }

    fn set(&mut self, pattern: &HostPattern, entry: Option<Loaded>) {
        match pattern {
            HostPattern::Exact(name) => self.exact.set(name, entry),
            HostPattern::Wildcard(base) => self.wildcard.set(base, entry),
            HostPattern::Any => self.any = entry,
        }
    }

    fn note(&mut self, pattern: Option<&HostPattern>, problem: Option<CertificateProblem>) {
        match problem {
            Some(problem) => drop(self.problems.insert(pattern.cloned(), problem)),
            None => drop(self.problems.remove(&pattern.cloned())),
        }
    }
}

impl Loaded {
    /// With a staple, if there is one that holds now.
    fn current(&self) -> Option<Arc<CertifiedKey>> {
        let now = || Duration::from_secs(UnixTime::now().as_secs());
        let stapled = self.stapled.as_ref().and_then(|stapled| stapled.at(now()));
        stapled.or(self.key.as_ref()).cloned()
    }
}

impl Stapled {
    fn of(key: &CertifiedKey, Staple { response, from, until }: &Staple) -> Self {
        let key = CertifiedKey { ocsp: Some(response.to_vec()), ..key.clone() };
        Self { key: Arc::new(key), holds: *from..*until }
    }

    fn at(&self, now: Duration) -> Option<&Arc<CertifiedKey>> {
        self.holds.contains(&now).then_some(&self.key)
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { exact, wildcard, any, fallback, source: _, problems: _ } = self;
        f.debug_struct("Certificates")
            .field("exact", &exact.values().count())
            .field("wildcard", &wildcard.values().count())
            .field("any", &any.is_some())
            .field("fallback", &fallback.is_some())
            .finish()
    }
}

/// Error texts never quote the key.
fn load(certificate: &Certificate, provider: &CryptoProvider) -> Result<CertifiedKey, String> {
    let Certificate { origin: _, chain, key, staple: _ } = certificate;
    let key = provider
        .key_provider
        .load_private_key(key.clone_key())
        .map_err(|error| format!("the private key cannot be used (RSA of 2048 bits and more, ECDSA P-256, P-384, P-521 and Ed25519 can): {error}"))?;
    let certified = CertifiedKey::new(chain.clone(), key);
    match certified.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => Ok(certified),
        Err(rustls::Error::InconsistentKeys(_)) => Err("the private key does not belong to the certificate".into()),
        Err(error) => Err(format!("the certificate cannot be read: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pem(names: &[&str]) -> (String, String) {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let made = rcgen::generate_simple_self_signed(names).expect("certificate");
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    fn certificate(origin: &str) -> Arc<Certificate> {
        let (cert, key) = pem(&["a.test"]);
        Arc::new(Certificate::from_pem(origin, cert.as_bytes(), key.as_bytes()).expect("valid pem"))
    }

    fn table(entries: &[(&str, &Arc<Certificate>)]) -> Tree<HostPattern, Option<Arc<Certificate>>> {
        let entry = |(host, certificate): &(&str, &Arc<Certificate>)| {
            (HostPattern::parse(host).expect("valid host"), Some(Arc::clone(certificate)))
        };
        entries.iter().map(entry).collect()
    }

    #[test]
    fn exact_name_beats_wildcard_beats_any() {
        let (a, w, d) = (certificate("x/a"), certificate("x/w"), certificate("x/d"));
        let (certificates, problems) =
            Certificates::load(None, &table(&[("a.b.test", &a), ("*.b.test", &w), ("", &d)]), None);
        assert_eq!(problems, []);
        for (name, expect) in [
            (Some("a.b.test"), &a),
            (Some("c.b.test"), &w),
            (Some("d.c.b.test"), &d),
            (Some("b.test"), &d),
            (Some("other"), &d),
            (None, &d),
        ] {
            let found = certificates.find(name).expect("found");
            assert_eq!(found.cert, expect.chain, "{name:?}");
        }
        assert!(Certificates::default().find(Some("a.test")).is_none());
    }

    #[test]
    fn a_staple_is_there_as_long_as_it_holds() {
        let at = Duration::from_secs;
        let plain = load(&certificate("x/a"), &crate::proxy::tls::provider()).expect("usable");
        let staple = Staple { response: Arc::from(&b"response"[..]), from: at(10), until: at(20) };
        let stapled = Stapled::of(&plain, &staple);
        for (now, expect) in [(9, false), (10, true), (19, true), (20, false)] {
            assert_eq!(stapled.at(at(now)).is_some(), expect, "{now}");
        }
        assert_eq!((stapled.key.ocsp.as_deref(), &stapled.key.cert), (Some(&b"response"[..]), &plain.cert));
        let loaded = |from, until| {
            let stapled = Some(Stapled::of(&plain, &Staple { from, until, ..staple.clone() }));
            Loaded { source: None, key: Some(Arc::new(plain.clone())), stapled }.current().expect("a key").ocsp.clone()
        };
        assert!(loaded(at(0), at(u64::MAX)).is_some() && loaded(at(0), at(1)).is_none());
    }

    #[test]
    fn unchanged_certificates_are_not_loaded_again() {
        let (a, b) = (certificate("x/a"), certificate("x/b"));
        let (first, _) = Certificates::load(None, &table(&[("a.test", &a), ("b.test", &a), ("c.test", &b)]), None);
        let copy = Arc::new(Certificate::clone(&a));
        let (second, _) = Certificates::load(Some(&first), &table(&[("a.test", &copy), ("c.test", &a)]), None);
        let find = |certificates: &Certificates, name| certificates.find(Some(name)).expect("found");
        assert!(Arc::ptr_eq(&find(&first, "a.test"), &find(&first, "b.test")));
        assert!(Arc::ptr_eq(&find(&first, "a.test"), &find(&second, "a.test")));
        assert_eq!(find(&second, "c.test").cert, a.chain);
    }

    #[test]
    fn a_name_without_certificate_is_left_to_the_fallback() {
        let (wild, any) = (certificate("x/wild"), certificate("y/any"));
        let mut table = table(&[("*.b.test", &wild), ("", &any)]);
        table.insert(HostPattern::parse("a.b.test").expect("valid host"), None);
        let (first, problems) = Certificates::load(None, &table, None);
        assert_eq!(problems, [], "who claims the name has been told");
        let (second, _) = Certificates::load(Some(&first), &table, None);
        for certificates in [&first, &second] {
            assert!(certificates.find(Some("a.b.test")).is_none());
            assert!(certificates.find(Some("c.b.test")).is_some() && certificates.find(None).is_some());
        }
        table.insert(HostPattern::Any, None);
        assert!(Certificates::load(Some(&second), &table, None).0.find(None).is_none());
    }

    #[test]
    fn the_fallback_serves_names_without_a_usable_certificate() {
        let (own, fallback) = (certificate("x/own"), certificate("y/fallback"));
        let mut table = table(&[("a.test", &own)]);
        table.insert(HostPattern::parse("b.test").expect("valid host"), None);
        let (first, problems) = Certificates::load(None, &table, Some(&fallback));
        assert_eq!(problems, []);
        for (name, expect) in
            [(Some("a.test"), &own), (Some("b.test"), &fallback), (Some("c.test"), &fallback), (None, &fallback)]
        {
            assert_eq!(first.find(name).expect("found").cert, expect.chain, "{name:?}");
        }
        let (second, _) = Certificates::load(Some(&first), &table, Some(&fallback));
        assert!(Arc::ptr_eq(&first.find(None).expect("found"), &second.find(None).expect("found")), "kept");
        let (third, _) = Certificates::load(Some(&second), &table, None);
        assert!(third.find(None).is_none() && third.find(Some("a.test")).is_some());
    }

    #[test]
    fn an_unusable_certificate_is_reported_and_leaves_its_name_to_the_fallback() {
        let (cert, _) = pem(&["a.test"]);
        let (_, other_key) = pem(&["b.test"]);
        let mismatch = Certificate::from_pem("x/mismatch", cert.as_bytes(), other_key.as_bytes()).expect("valid pem");
        let (mismatch, any) = (Arc::new(mismatch), certificate("x/any"));
        let table = table(&[("a.test", &mismatch), ("", &any)]);
        let (first, problems) = Certificates::load(None, &table, None);
        assert_eq!(problems.len(), 1);
        assert_eq!(&*problems[0].origin, "x/mismatch");
        assert!(problems[0].reason.contains("does not belong"), "{}", problems[0].reason);
        assert!(first.find(Some("a.test")).is_none());
        assert!(first.find(Some("other.test")).is_some());
        assert_eq!(Certificates::load(Some(&first), &table, None).1, problems);
    }
}
