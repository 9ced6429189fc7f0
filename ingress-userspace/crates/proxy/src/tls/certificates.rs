//! Certificates ready for handshakes, selected by server name. Protocol versions and ciphers are chosen elsewhere.

use std::{collections::BTreeMap, fmt, ops::Range, sync::Arc, time::Duration};

use rustls::{crypto::CryptoProvider, sign::CertifiedKey};
use rustls_pki_types::{CertificateDer, UnixTime};
use webpki::EndEntityCert;
use x509_cert::der::Decode as _;

use ingress_model::{
    Certificate, HostPattern, RouteTable, Staple, Tree,
    route::{HostMap, NameMap},
    tree::Difference,
};

/// All certificates of a snapshot.
///
/// Names map to the origin of a certificate, so that a certificate can be replaced without visiting its names.
#[derive(Clone, Default)]
pub struct Certificates {
    /// The origin of the certificate of each name; `None` if it has none.
    names: HostMap<Option<Arc<str>>>,
    /// The certificate for names without a usable one.
    fallback: Option<Arc<str>>,
    /// Loaded certificates by origin. An unusable one is missing here; its names get the fallback instead of a less
    /// specific certificate.
    loaded: NameMap<Loaded, Arc<str>>,
    /// The certificates that they were loaded from.
    source: Tree<Arc<str>, Arc<Certificate>>,
    server_names: Tree<HostPattern, Option<Arc<str>>>,
    /// The problems of unusable certificates, by origin.
    problems: BTreeMap<Arc<str>, String>,
}

/// An unusable certificate. Its names, if it has any here, are served with the fallback certificate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CertificateProblem {
    /// [`Certificate::origin`].
    pub origin: Arc<str>,
    pub reason: String,
}

#[derive(Clone)]
struct Loaded {
    key: Arc<CertifiedKey>,
    /// Names of the leaf.
    names: Box<[HostPattern]>,
    /// End of validity of the leaf, as time since 1970; `None` if it cannot be read.
    not_after: Option<Duration>,
    /// The same key with the issuer's OCSP response.
    stapled: Option<Stapled>,
}

#[derive(Clone)]
struct Stapled {
    key: Arc<CertifiedKey>,
    /// The validity period, as times since 1970.
    holds: Range<Duration>,
}

impl Certificates {
    /// Loads certificates from `table` that `previous` does not hold already. Returns all problems, including those of
    /// `previous`.
    pub(crate) fn load(previous: Option<&Self>, table: &RouteTable) -> (Self, Vec<CertificateProblem>) {
        let RouteTable { certificates, server_names, fallback_certificate, .. } = table;
        let provider = crate::tls::provider::provider();
        let mut next = previous.cloned().unwrap_or_default();
        let known = std::mem::replace(&mut next.source, certificates.clone());
        for Difference { key: origin, old: _, new } in known.differences(certificates) {
            next.problems.remove(origin);
            let loaded = new.and_then(|source| match load(source, &provider) {
                Ok(key) => Some(Loaded::of(key, source.staple.as_ref())),
                Err(reason) => {
                    next.problems.insert(Arc::clone(origin), reason);
                    None
                }
            });
            next.loaded.set(origin, loaded);
        }
        let known = std::mem::replace(&mut next.server_names, server_names.clone());
        for Difference { key: pattern, old: _, new } in known.differences(server_names) {
            next.names.set(pattern, new.cloned());
        }
        next.fallback.clone_from(fallback_certificate);
        let problem = |(origin, reason): (&Arc<str>, &String)| CertificateProblem {
            origin: Arc::clone(origin),
            reason: reason.clone(),
        };
        let problems = next.problems.iter().map(problem).collect();
        (next, problems)
    }

    /// Returns the certificate for a server name in lower case, or `None` if it has none and there is no usable
    /// fallback.
    pub(crate) fn find(&self, name: Option<&str>) -> Option<Arc<CertifiedKey>> {
        let own = name.map_or_else(|| self.names.get(&HostPattern::Any), |name| self.names.find(name));
        let current = |origin: &Option<Arc<str>>| Some(self.loaded.get(origin.as_deref()?)?.current());
        own.and_then(current).or_else(|| current(&self.fallback))
    }

    /// Returns the certificate for `server_name`, in lower case, among those of a listener: the first that covers the
    /// name, else the first that is usable.
    pub(crate) fn among(&self, origins: &[Arc<str>], server_name: &str) -> Option<Arc<CertifiedKey>> {
        let usable = || origins.iter().filter_map(|origin| self.loaded.get(origin));
        let covering = usable().find(|loaded| loaded.names.iter().any(|name| name.matches(server_name)));
        covering.or_else(|| usable().next()).map(Loaded::current)
    }

    /// Returns the end of validity of each usable certificate, as time since 1970, by origin.
    pub fn expiries(&self) -> impl Iterator<Item = (&Arc<str>, Duration)> {
        self.source.keys().filter_map(|origin| Some((origin, self.loaded.get(origin)?.not_after?)))
    }

    /// Returns the number of names that are configured for TLS and get the fallback certificate, because their own is
    /// missing or unusable. Visits every name.
    #[must_use]
    pub fn names_on_fallback(&self) -> usize {
        let is_usable = |origin: &Option<Arc<str>>| origin.as_deref().is_some_and(|own| self.loaded.get(own).is_some());
        self.server_names.values().filter(|origin| !is_usable(origin)).count()
    }

    /// Returns whether a host with this name, in lower case, is configured with a certificate of its own, usable or
    /// not.
    pub(crate) fn names(&self, name: &str) -> bool {
        self.names.find_named(name).is_some()
    }
}

impl Loaded {
    fn of(key: CertifiedKey, staple: Option<&Staple>) -> Self {
        let stapled = staple.map(|staple| Stapled::of(&key, staple));
        let not_after = key.cert.first().and_then(|leaf| not_after(leaf));
        let names = key.cert.first().map(|leaf| names(leaf)).unwrap_or_default();
        Self { key: Arc::new(key), names, not_after, stapled }
    }

    /// Returns the key, with the OCSP response if it is valid now.
    fn current(&self) -> Arc<CertifiedKey> {
        let now = || Duration::from_secs(UnixTime::now().as_secs());
        let stapled = self.stapled.as_ref().and_then(|stapled| stapled.at(now()));
        Arc::clone(stapled.unwrap_or(&self.key))
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
        let Self { names, fallback, loaded, source: _, server_names: _, problems: _ } = self;
        f.debug_struct("Certificates")
            .field("loaded", &loaded.values().count())
            .field("names", &names.values().count())
            .field("fallback", &fallback.is_some())
            .finish()
    }
}

/// Returns the DNS names of a certificate.
fn names(certificate: &CertificateDer<'_>) -> Box<[HostPattern]> {
    let Ok(leaf) = EndEntityCert::try_from(certificate) else { return Box::default() };
    leaf.valid_dns_names().filter_map(|name| HostPattern::parse(name).ok()).collect()
}

/// Returns the end of validity of a certificate, as time since 1970.
fn not_after(certificate: &[u8]) -> Option<Duration> {
    let certificate = x509_cert::Certificate::from_der(certificate).ok()?;
    Some(certificate.tbs_certificate().validity().not_after.to_unix_duration())
}

/// Loads the key. Error texts never contain it.
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

    fn pattern(host: &str) -> HostPattern {
        HostPattern::parse(host).expect("valid host")
    }

    fn table(entries: &[(&str, &Arc<Certificate>)]) -> RouteTable {
        let mut table = RouteTable::default();
        for (host, certificate) in entries {
            table.server_names.insert(pattern(host), Some(Arc::clone(&certificate.origin)));
            table.certificates.insert(Arc::clone(&certificate.origin), Arc::clone(certificate));
        }
        table
    }

    #[test]
    fn exact_name_beats_wildcard_beats_any() {
        let (a, w, d) = (certificate("x/a"), certificate("x/w"), certificate("x/d"));
        let (certificates, problems) =
            Certificates::load(None, &table(&[("a.b.test", &a), ("*.b.test", &w), ("", &d)]));
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
    fn a_staple_is_used_while_it_is_valid() {
        let at = Duration::from_secs;
        let plain = load(&certificate("x/a"), &crate::tls::provider::provider()).expect("usable");
        let staple = Staple { response: Arc::from(&b"response"[..]), from: at(10), until: at(20) };
        let stapled = Stapled::of(&plain, &staple);
        for (now, expect) in [(9, false), (10, true), (19, true), (20, false)] {
            assert_eq!(stapled.at(at(now)).is_some(), expect, "{now}");
        }
        assert_eq!((stapled.key.ocsp.as_deref(), &stapled.key.cert), (Some(&b"response"[..]), &plain.cert));
        let loaded = |from, until| {
            let staple = Staple { from, until, ..staple.clone() };
            Loaded::of(plain.clone(), Some(&staple)).current().ocsp.clone()
        };
        assert!(loaded(at(0), at(u64::MAX)).is_some() && loaded(at(0), at(1)).is_none());
    }

    #[test]
    fn unchanged_certificates_are_not_loaded_again() {
        let (a, b) = (certificate("x/a"), certificate("x/b"));
        let (first, _) = Certificates::load(None, &table(&[("a.test", &a), ("b.test", &a), ("c.test", &b)]));
        let copy = Arc::new(Certificate::clone(&a));
        let (second, _) = Certificates::load(Some(&first), &table(&[("a.test", &copy), ("c.test", &a)]));
        let find = |certificates: &Certificates, name| certificates.find(Some(name)).expect("found");
        assert!(Arc::ptr_eq(&find(&first, "a.test"), &find(&first, "b.test")));
        assert!(Arc::ptr_eq(&find(&first, "a.test"), &find(&second, "a.test")));
        assert_eq!(find(&second, "c.test").cert, a.chain);
    }

    #[test]
    fn the_end_of_each_usable_certificate_is_known_and_names_without_one_are_counted() {
        let params = |year| {
            let mut params = rcgen::CertificateParams::new(vec!["a.test".to_owned()]).expect("a name");
            params.not_after = rcgen::date_time_ymd(year, 1, 1);
            let key = rcgen::KeyPair::generate().expect("a key");
            (params.self_signed(&key).expect("a certificate").pem(), key.serialize_pem())
        };
        let of = |origin: &str, (cert, key): (String, String)| {
            Arc::new(Certificate::from_pem(origin, cert.as_bytes(), key.as_bytes()).expect("valid pem"))
        };
        let (soon, late) = (of("x/soon", params(2030)), of("x/late", params(2040)));
        let mismatch = of("x/mismatch", (params(2035).0, params(2036).1));
        let mut table = table(&[("a.test", &soon), ("*.b.test", &late), ("c.test", &mismatch), ("d.test", &late)]);
        table.server_names.insert(pattern("e.test"), None);
        let (certificates, _) = Certificates::load(None, &table);
        let mut expiries: Vec<_> = certificates.expiries().map(|(origin, end)| (&**origin, end.as_secs())).collect();
        expiries.sort_unstable();
        assert_eq!(expiries, [("x/late", 2_208_988_800), ("x/soon", 1_893_456_000)]);
        assert_eq!(certificates.names_on_fallback(), 2, "c.test and e.test");
        assert_eq!(Certificates::default().names_on_fallback(), 0);
    }

    #[test]
    fn a_replaced_certificate_changes_for_all_its_names() {
        let (old, new, other) = (certificate("x/a"), certificate("x/a"), certificate("x/b"));
        let of = |certificate: &Arc<Certificate>| {
            table(&[("a.test", certificate), ("*.b.test", certificate), ("", certificate), ("c.test", &other)])
        };
        let (first, _) = Certificates::load(None, &of(&old));
        let (second, problems) = Certificates::load(Some(&first), &of(&new));
        assert_eq!(problems, []);
        for name in ["a.test", "x.b.test", "d.test"] {
            let shown = |certificates: &Certificates| certificates.find(Some(name)).expect("found").cert.clone();
            assert_eq!((shown(&first), shown(&second)), (old.chain.clone(), new.chain.clone()), "{name}");
        }
        assert_eq!(second.find(Some("c.test")).expect("found").cert, other.chain);
    }

    #[test]
    fn a_name_without_certificate_is_left_to_the_fallback() {
        let (wild, any) = (certificate("x/wild"), certificate("y/any"));
        let mut table = table(&[("*.b.test", &wild), ("", &any)]);
        table.server_names.insert(pattern("a.b.test"), None);
        let (first, problems) = Certificates::load(None, &table);
        assert_eq!(problems, [], "who claims the name has been told");
        let (second, _) = Certificates::load(Some(&first), &table);
        for certificates in [&first, &second] {
            assert!(certificates.find(Some("a.b.test")).is_none());
            assert!(certificates.find(Some("c.b.test")).is_some() && certificates.find(None).is_some());
        }
        table.server_names.insert(HostPattern::Any, None);
        assert!(Certificates::load(Some(&second), &table).0.find(None).is_none());
    }

    #[test]
    fn the_fallback_serves_names_without_a_usable_certificate() {
        let (own, fallback) = (certificate("x/own"), certificate("y/fallback"));
        let mut table = table(&[("a.test", &own)]);
        table.certificates.insert(Arc::clone(&fallback.origin), Arc::clone(&fallback));
        table.fallback_certificate = Some(Arc::clone(&fallback.origin));
        table.server_names.insert(pattern("b.test"), None);
        let (first, problems) = Certificates::load(None, &table);
        assert_eq!(problems, []);
        for (name, expect) in
            [(Some("a.test"), &own), (Some("b.test"), &fallback), (Some("c.test"), &fallback), (None, &fallback)]
        {
            assert_eq!(first.find(name).expect("found").cert, expect.chain, "{name:?}");
        }
        let (second, _) = Certificates::load(Some(&first), &table);
        assert!(Arc::ptr_eq(&first.find(None).expect("found"), &second.find(None).expect("found")), "kept");
        table.fallback_certificate = None;
        let (third, _) = Certificates::load(Some(&second), &table);
        assert!(third.find(None).is_none() && third.find(Some("a.test")).is_some());
    }

    #[test]
    fn an_unusable_certificate_is_reported_and_leaves_its_name_to_the_fallback() {
        let (cert, _) = pem(&["a.test"]);
        let (_, other_key) = pem(&["b.test"]);
        let mismatch = Certificate::from_pem("x/mismatch", cert.as_bytes(), other_key.as_bytes()).expect("valid pem");
        let (mismatch, any) = (Arc::new(mismatch), certificate("x/any"));
        let mut table = table(&[("a.test", &mismatch), ("", &any)]);
        let (first, problems) = Certificates::load(None, &table);
        assert_eq!(problems.len(), 1);
        assert_eq!(&*problems[0].origin, "x/mismatch");
        assert!(problems[0].reason.contains("does not belong"), "{}", problems[0].reason);
        assert!(first.find(Some("a.test")).is_none());
        assert!(first.find(Some("other.test")).is_some());
        assert_eq!(Certificates::load(Some(&first), &table).1, problems);
        table.certificates.insert(Arc::clone(&mismatch.origin), certificate("x/mismatch"));
        let (second, problems) = Certificates::load(Some(&first), &table);
        assert_eq!(problems, []);
        assert!(second.find(Some("a.test")).is_some());
    }
}
