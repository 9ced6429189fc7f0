//! The certificates of a route table, as documents. No key is looked at.

use std::{collections::BTreeMap, sync::Arc};

use ingress_model::{Certificate, RouteTable, Staple};
use serde::{Deserialize, Serialize};
use x509_cert::{
    der::Decode as _,
    ext::pkix::{SubjectAltName, name::GeneralName},
};

use crate::timestamp::timestamp;

/// A certificate that clients may get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateDocument {
    /// The Secret, as `namespace/name`; `None` for server names without a usable certificate, which get the fallback.
    pub secret: Option<String>,
    /// Server names that select the certificate, in order.
    pub server_names: Vec<String>,
    /// Whether names without a certificate of their own get this one.
    pub is_fallback: bool,
    /// The parsed leaf certificate; `None` if there is none or it cannot be parsed.
    pub leaf: Option<LeafDocument>,
}

/// Facts of a leaf certificate (RFC 5280).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeafDocument {
    pub subject: String,
    pub issuer: String,
    /// DNS names of the subject alternative name.
    pub dns_names: Vec<String>,
    /// Validity in RFC 3339.
    pub not_before: String,
    pub not_after: String,
    /// End of validity as Unix time in seconds.
    pub not_after_seconds: i64,
    /// Whole days until the end of validity, rounded down; negative once it is over.
    pub days_left: i64,
    /// End of validity of the stapled OCSP response, in RFC 3339; `None` without one.
    pub staple_until: Option<String>,
}

/// A certificate that is not parsed yet, so that a page of a long list is cheap.
#[derive(Clone, Debug)]
pub struct CertificateEntry {
    secret: Option<Arc<str>>,
    server_names: Vec<String>,
    is_fallback: bool,
}

/// Returns the certificates that clients may get, the one that expires first at the beginning, those without facts
/// last. `now` is the Unix time in seconds.
#[must_use]
pub fn certificates(table: &RouteTable, now: i64) -> Vec<CertificateDocument> {
    let mut documents: Vec<_> = certificate_entries(table).iter().map(|entry| entry.document(table, now)).collect();
    documents.sort_by_key(|document| document.leaf.as_ref().map_or(i64::MAX, |leaf| leaf.not_after_seconds));
    documents
}

/// Returns the certificates that clients may get in order of their Secrets, names without one first.
#[must_use]
pub fn certificate_entries(table: &RouteTable) -> Vec<CertificateEntry> {
    let mut names: BTreeMap<Option<Arc<str>>, Vec<String>> = BTreeMap::new();
    for (pattern, origin) in &table.server_names {
        names.entry(origin.clone()).or_default().push(pattern.to_string());
    }
    if let Some(fallback) = &table.fallback_certificate {
        names.entry(Some(Arc::clone(fallback))).or_default();
    }
    let entry = |(secret, server_names): (Option<Arc<str>>, Vec<String>)| CertificateEntry {
        is_fallback: secret.is_some() && secret == table.fallback_certificate,
        server_names,
        secret,
    };
    names.into_iter().map(entry).collect()
}

/// Returns the facts of the leaf certificate of a Secret (`namespace/name`), or `None` if it has none that can be
/// parsed. `now` is the Unix time in seconds.
#[must_use]
pub fn leaf(table: &RouteTable, secret: &str, now: i64) -> Option<LeafDocument> {
    facts(table.certificates.get(secret)?, now)
}

/// Returns the facts of the leaf certificate, or `None` if it cannot be parsed.
fn facts(certificate: &Certificate, now: i64) -> Option<LeafDocument> {
    let leaf = x509_cert::Certificate::from_der(certificate.chain.first()?).ok()?;
    let tbs = leaf.tbs_certificate();
    let seconds = |time: x509_cert::time::Time| i64::try_from(time.to_unix_duration().as_secs()).unwrap_or(i64::MAX);
    let (from, until) = (seconds(tbs.validity().not_before), seconds(tbs.validity().not_after));
    Some(LeafDocument {
        subject: tbs.subject().to_string(),
        issuer: tbs.issuer().to_string(),
        dns_names: dns_names(tbs).unwrap_or_default(),
        not_before: timestamp(from),
        not_after: timestamp(until),
        not_after_seconds: until,
        days_left: until.saturating_sub(now).div_euclid(24 * 3600),
        staple_until: certificate.staple.as_ref().map(|Staple { response: _, from: _, until }| {
            timestamp(i64::try_from(until.as_secs()).unwrap_or(i64::MAX))
        }),
    })
}

fn dns_names(tbs: &x509_cert::TbsCertificate) -> Option<Vec<String>> {
    let (_is_critical, SubjectAltName(names)) = tbs.get_extension::<SubjectAltName>().ok()??;
    let dns = |name: GeneralName| match name {
        GeneralName::DnsName(name) => Some(name.to_string()),
        _ => None,
    };
    Some(names.into_iter().filter_map(dns).collect())
}

// === impl CertificateEntry ===

impl CertificateEntry {
    /// Returns the Secret, as `namespace/name`; `None` for server names without a usable certificate.
    #[must_use]
    pub fn secret(&self) -> Option<&str> {
        self.secret.as_deref()
    }

    /// Returns the server names that select the certificate, in order.
    #[must_use]
    pub fn server_names(&self) -> &[String] {
        &self.server_names
    }

    /// Returns the document. `table` is the one that the entry is of; `now` is the Unix time in seconds.
    #[must_use]
    pub fn document(&self, table: &RouteTable, now: i64) -> CertificateDocument {
        let Self { secret, server_names, is_fallback } = self;
        CertificateDocument {
            secret: secret.as_deref().map(str::to_owned),
            server_names: server_names.clone(),
            is_fallback: *is_fallback,
            leaf: secret.as_deref().and_then(|secret| leaf(table, secret, now)),
        }
    }
}

#[cfg(test)]
mod tests {
    use ingress_model::HostPattern;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn table() -> RouteTable {
        let mut table = RouteTable::default();
        for (origin, year) in [("a/late", 2040), ("a/soon", 2027)] {
            let mut params =
                CertificateParams::new(vec![format!("{year}.test"), "*.x.test".to_owned()]).expect("names");
            params.not_before = date_time_ymd(2026, 1, 1);
            params.not_after = date_time_ymd(year, 1, 1);
            let key = KeyPair::generate().expect("a key");
            let certificate = params.self_signed(&key).expect("a certificate");
            let certificate =
                Certificate::from_pem(origin, certificate.pem().as_bytes(), key.serialize_pem().as_bytes());
            table.certificates.insert(origin.into(), Arc::new(certificate.expect("well-formed")));
        }
        for (name, origin) in [("late.test", Some("a/late")), ("b.test", Some("a/soon")), ("c.test", None)] {
            table.server_names.insert(HostPattern::parse(name).expect("a host"), origin.map(Arc::from));
        }
        table.fallback_certificate = Some("a/soon".into());
        table
    }

    #[test]
    fn the_first_to_expire_comes_first_and_no_key_is_shown() {
        // 2026-12-31T00:00:00Z
        let documents = certificates(&table(), 1_798_675_200);
        let secrets: Vec<_> = documents.iter().map(|document| document.secret.as_deref()).collect();
        assert_eq!(secrets, [Some("a/soon"), Some("a/late"), None]);
        let soon = documents[0].leaf.as_ref().expect("parsed");
        assert_eq!((soon.days_left, &*soon.not_after), (1, "2027-01-01T00:00:00Z"));
        assert_eq!(soon.dns_names, ["2027.test", "*.x.test"]);
        assert!(documents[0].is_fallback && !documents[1].is_fallback);
        assert_eq!(documents[2].server_names, ["c.test"]);
        let text = serde_json::to_string(&documents).expect("JSON");
        assert!(!text.contains("PRIVATE") && !text.contains("key"), "{text}");
    }

    #[test]
    fn an_expired_certificate_has_negative_days() {
        // 2027-01-01T00:00:01Z
        let documents = certificates(&table(), 1_798_761_601);
        assert_eq!(documents[0].leaf.as_ref().map(|leaf| leaf.days_left), Some(-1));
    }
}
