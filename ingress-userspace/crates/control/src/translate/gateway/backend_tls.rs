//! BackendTLSPolicies: which one holds for a port of a Service, and its terms of TLS. Routes are not known here.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rustls_pki_types::{DnsName, ServerName};

use super::{
    authorities::authorities,
    report::{ACCEPTED, Flaw, RESOLVED_REFS, unless},
    secret,
};
use crate::{
    change::{Kind, ObjectId, ObjectName},
    gateway::{
        BackendTlsPolicy, BackendTlsValidation, Group, PolicyTarget, ReferentKind, SubjectAltName,
        WellKnownCertificates,
    },
    object_status::{Condition, ObjectStatus, ParentReference, ParentStatus, StatusBody},
    translate::{claims::age, lookup::Lookup, text::shorten, trust_anchors},
};
use ingress_model::{Authorities, CertificateName, UpstreamTls, Verify, Versions};

/// A policy as it is, without the Gateways that it concerns.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    generation: i64,
    /// Whether its namespace counts. The policy of another one still holds for its Services, so that nothing is sent to
    /// them without TLS, but its status belongs to others.
    pub(crate) is_of_selected: bool,
    /// Services that it targets.
    pub(crate) services: BTreeSet<ObjectName>,
    conditions: Vec<Condition>,
}

/// Authorities, the flaw of the first that cannot be used, and the reason for which the policy cannot be met.
struct Terms {
    tls: Result<Arc<UpstreamTls>, Flaw>,
    unresolved: Option<Flaw>,
}

/// Returns the policy for a port of a service: one for the port goes before one for the service, then the oldest.
pub(super) fn chosen<'c>(
    service: &ObjectName,
    port: Option<&str>,
    lookup: &Lookup<'c>,
) -> Option<&'c BackendTlsPolicy> {
    let targets = lookup.policies_of(service).flat_map(|policy| {
        let targets = policy.spec.target_refs.iter().filter(|target| is_of(target, &service.name));
        targets.map(move |target| (target.section_name.as_deref(), policy))
    });
    let fitting = targets.filter(|(section, _)| section.is_none() || *section == port);
    fitting.min_by_key(|(section, policy)| (section.is_none(), seniority(policy))).map(|(_, policy)| policy)
}

fn is_of(PolicyTarget { group, kind, name, section_name: _ }: &PolicyTarget, service: &str) -> bool {
    (group, kind, &**name) == (&Group::Core, &ReferentKind::Service, service)
}

fn seniority(policy: &BackendTlsPolicy) -> ((bool, Option<Time>), ObjectName) {
    (age(policy.metadata.creation_timestamp.as_ref()), policy.metadata.name.clone())
}

/// Returns the terms of TLS with the backends of policy `name`. `secret` has the certificate to present, if any.
///
/// # Errors
/// A description of the problem for which they cannot be met; nothing may be sent then.
pub(in crate::translate) fn terms(
    name: &ObjectName,
    secret: Option<&ObjectName>,
    lookup: &Lookup<'_>,
) -> Result<Arc<UpstreamTls>, String> {
    let Some(stored) = lookup.backend_tls_policy(name) else {
        return Err(format!("BackendTLSPolicy `{name}` is gone"));
    };
    let tls = read(name, &stored.object, lookup).tls;
    let tls = tls.map_err(|flaw| format!("BackendTLSPolicy `{name}`: {}", flaw.message))?;
    let Some(secret) = secret else { return Ok(tls) };
    let certificate = Some(Arc::new(secret::own(secret, lookup)?));
    Ok(Arc::new(UpstreamTls { certificate, ..UpstreamTls::clone(&tls) }))
}

fn read(name: &ObjectName, policy: &BackendTlsPolicy, lookup: &Lookup<'_>) -> Terms {
    let validation = &policy.spec.validation;
    let id = ObjectId { kind: Kind::BackendTlsPolicy, name: name.clone() };
    let BackendTlsValidation { ca_certificate_refs, well_known_ca_certificates, .. } = validation;
    let (found, unresolved) = match (&**ca_certificate_refs, well_known_ca_certificates) {
        ([], Some(WellKnownCertificates::System)) => (Some(trust_anchors::public()), None),
        ([], Some(WellKnownCertificates::Other(other))) => {
            let message = format!("authorities `{}` are not known; use `System`", shorten(other));
            return Terms { tls: Err(Flaw::new("Invalid", message)), unresolved: None };
        }
        (references, _) => authorities(&id, references, lookup),
    };
    let tls = found.ok_or_else(|| {
        let message = unresolved.as_ref().map_or("there are no authorities; name some", |flaw| &flaw.message);
        Flaw::new("NoValidCACertificate", message)
    });
    Terms { tls: tls.and_then(|authorities| tls_with(authorities, validation)), unresolved }
}

fn tls_with(authorities: Arc<Authorities>, validation: &BackendTlsValidation) -> Result<Arc<UpstreamTls>, Flaw> {
    let server_name = name_of(&validation.hostname)?;
    let names = match &*validation.subject_alt_names {
        [] => vec![CertificateName::Server(server_name.clone())],
        names => names.iter().map(certificate_name).collect::<Result<_, _>>()?,
    };
    let verify = Some(Verify { authorities, names, depth: None });
    Ok(Arc::new(UpstreamTls {
        verify,
        certificate: None,
        server_name: Some(server_name),
        versions: Versions::default(),
    }))
}

fn certificate_name(name: &SubjectAltName) -> Result<CertificateName, Flaw> {
    match name {
        SubjectAltName::Hostname(hostname) => match hostname.strip_prefix("*.") {
            None => name_of(hostname).map(CertificateName::Server),
            Some(parent) => {
                let parent = DnsName::try_from(parent.to_owned()).map_err(|_invalid| no_name(hostname))?;
                Ok(CertificateName::Wildcard(parent))
            }
        },
        SubjectAltName::Uri(uri) if is_absolute(uri) => Ok(CertificateName::Uri(uri.clone())),
        SubjectAltName::Uri(uri) => {
            let message = format!("`{}` is no URI with a scheme; correct `subjectAltNames`", shorten(uri));
            Err(Flaw::new("Invalid", message))
        }
        SubjectAltName::Other(kind) => {
            let message =
                format!("`subjectAltNames` of type `{}` are not known; use `Hostname` or `URI`", shorten(kind));
            Err(Flaw::new("Invalid", message))
        }
    }
}

/// Returns whether `uri` has a scheme, and more after it (RFC 3986, section 3.1).
fn is_absolute(uri: &str) -> bool {
    let Some((scheme, rest)) = uri.split_once(':') else { return false };
    let is_of_scheme = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(is_of_scheme)
        && !rest.is_empty()
        && rest.bytes().all(|byte| byte.is_ascii_graphic())
}

fn name_of(hostname: &str) -> Result<ServerName<'static>, Flaw> {
    ServerName::try_from(hostname.to_owned()).map_err(|_invalid| no_name(hostname))
}

fn no_name(hostname: &str) -> Flaw {
    Flaw::new("Invalid", format!("`{}` is no name that a certificate can have; correct it", shorten(hostname)))
}

/// Makes policy `name`; `None` if it is gone.
pub(crate) fn make(name: &ObjectName, lookup: &Lookup<'_>) -> Option<Policy> {
    let policy = &*lookup.backend_tls_policy(name)?.object;
    let Terms { tls, unresolved } = read(name, policy, lookup);
    let services = policy.services();
    let conflict = conflict(policy, lookup);
    let accepted = conflict.or(tls.err());
    let unresolved = unresolved.map(|Flaw { reason, message }| match reason {
        // The policy has a name of its own for it.
        "InvalidCACertificateKind" => Flaw::new("InvalidKind", message),
        reason => Flaw::new(reason, message),
    });
    Some(Policy {
        generation: policy.metadata.generation.unwrap_or_default(),
        is_of_selected: lookup.selects(&name.namespace),
        services,
        conditions: vec![unless(ACCEPTED, accepted.as_ref()), unless(RESOLVED_REFS, unresolved.as_ref())],
    })
}

/// Returns the conflict with an older policy for the same target.
fn conflict(policy: &BackendTlsPolicy, lookup: &Lookup<'_>) -> Option<Flaw> {
    let own = seniority(policy);
    let has_same =
        |other: &BackendTlsPolicy| policy.spec.target_refs.iter().any(|target| other.spec.target_refs.contains(target));
    let services = policy.services();
    let mut others = services.iter().flat_map(|service| lookup.policies_of(service));
    let other = others.find(|other| has_same(other) && seniority(other) < own)?;
    let message = format!("the older policy `{}` has the same target; remove one", other.metadata.name);
    Some(Flaw::new("Conflicted", message))
}

// === impl Policy ===

impl Policy {
    /// Returns the status, for the Gateways that it concerns. `None` if it concerns none.
    pub(crate) fn status(&self, gateways: &BTreeSet<ObjectName>) -> Option<ObjectStatus> {
        let ancestor = |ObjectName { namespace, name }: &ObjectName| ParentStatus {
            parent: ParentReference {
                group: Group::Gateway,
                kind: ReferentKind::Gateway,
                namespace: Some(Arc::clone(namespace)),
                name: Arc::clone(name),
                section_name: None,
                port: None,
            },
            conditions: self.conditions.clone(),
        };
        let ancestors: Vec<_> = gateways.iter().map(ancestor).collect();
        let is_shown = !ancestors.is_empty();
        is_shown.then_some(ObjectStatus { generation: self.generation, body: StatusBody::Policy { ancestors } })
    }
}
