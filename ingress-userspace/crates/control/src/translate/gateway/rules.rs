//! Rules of HTTPRoutes and GRPCRoutes: filters, backends and the action of each match.

use std::sync::Arc;

use super::{
    attach::{Attachment, by_certificate},
    backend,
    filters::ReadFilters,
    matches::Expressions,
    policy::{self, RoutePolicies},
    report::Flaw,
    route::{ByListener, Candidate},
};
use crate::{
    change::{ObjectId, ObjectName},
    gateway::{BackendRef, route::Filter},
    translate::{
        Context,
        backend_policy::BackendPolicy,
        destination::{Purpose, SubrequestSender},
        features::{redirects::Redirects, session_affinity::with_path},
        policy::{Policy, Service},
    },
};
use ingress_model::{
    Action, Conditions, Forwarding, PathMatch, Protocol, Rule, Unavailable, UpstreamKey, WeightedBackend,
    WeightedBackends,
};

/// The rules of one route while they are read.
pub(super) struct Rules<'r> {
    id: &'r ObjectId,
    owner: Arc<str>,
    /// Protocol for ports of backends that name none.
    protocol: Option<Protocol>,
    /// Secret with the certificate to present to backends, if any.
    certificate: Option<&'r ObjectName>,
    pub(super) expressions: Expressions,
    /// The flaw of the first backend that cannot be used.
    unresolved: Option<Flaw>,
    candidates: Vec<Candidate>,
}

/// All rules of a route, and its first flaws.
pub(super) struct ReadRules {
    pub(super) requests: ByListener<Box<[Candidate]>>,
    pub(super) flaw: Option<Flaw>,
    /// The flaw of a backend that cannot be used.
    pub(super) unresolved: Option<Flaw>,
}

/// The parts of a rule.
pub(super) struct WrittenRule<'r> {
    /// Index of the rule in the route.
    pub(super) index: usize,
    /// Demands of each match.
    pub(super) demands: Result<Vec<Demand>, Flaw>,
    pub(super) filters: &'r [Filter],
    pub(super) backends: &'r [BackendRef],
    pub(super) forwarding: Result<Arc<Forwarding>, Flaw>,
}

/// Demands on the path and the rest of a request.
pub(super) type Demand = (PathMatch, Conditions);

/// A backend of a rule, for matches of any path.
struct Backend<'b> {
    weight: u32,
    target: Result<UpstreamKey, Unavailable>,
    filters: ReadFilters<'b>,
}

/// Reads the rules of a route for each certificate that its Gateways present to backends. `protocol` holds for ports of
/// backends that name none.
pub(super) fn read_each(
    id: &ObjectId,
    protocol: Option<Protocol>,
    attachments: &[Attachment<'_>],
    mut read: impl FnMut(&mut Rules<'_>) -> Result<(), Flaw>,
) -> ReadRules {
    let (mut flaw, mut unresolved, mut requests) = (None, None, Vec::new());
    let mut expressions = Expressions::new();
    for (certificate, listeners) in by_certificate(attachments) {
        expressions.reset();
        let mut rules = Rules::new(id, protocol, certificate.as_ref(), expressions);
        flaw = flaw.or(read(&mut rules).err());
        expressions = rules.expressions;
        unresolved = unresolved.or(rules.unresolved);
        requests.push((listeners.into_iter().collect(), rules.candidates.into()));
    }
    ReadRules { requests: ByListener(requests.into()), flaw, unresolved }
}

// === impl Rules ===

impl<'r> Rules<'r> {
    fn new(
        id: &'r ObjectId,
        protocol: Option<Protocol>,
        certificate: Option<&'r ObjectName>,
        expressions: Expressions,
    ) -> Self {
        Self {
            id,
            owner: id.name.to_string().into(),
            protocol,
            certificate,
            expressions,
            unresolved: None,
            candidates: Vec::new(),
        }
    }

    /// Adds a rule of the route, for each of its matches.
    ///
    /// # Errors
    /// The flaw of a value that is not supported. The backends are resolved all the same.
    pub(super) fn add(
        &mut self,
        written: WrittenRule<'_>,
        policies: &RoutePolicies,
        context: &mut Context<'_, '_>,
    ) -> Result<(), Flaw> {
        let WrittenRule { index, demands, filters, backends: references, forwarding } = written;
        let (policy, missing) = match policies.of(index) {
            Ok(policy) => (policy, false),
            Err(flaw) => {
                self.unresolved.get_or_insert_with(|| flaw.clone());
                (None, true)
            }
        };
        let wish = policy.map(|policy| policy.backend.clone()).unwrap_or_default();
        let backends = self.backends(references, &wish, context);
        let filters = ReadFilters::of_rule(filters, &mut |reference| self.mirror(reference, context))?;
        let (backends, demands, forwarding) = (backends?, demands?, forwarding?);
        for (at, (path, conditions)) in demands.into_iter().enumerate() {
            let action = match (filters.redirect(&path)?, policy) {
                _ if missing => Action::Refuse(Unavailable::InvalidReference),
                (_, Some(Policy { service: Service::Refuse, .. })) => Action::Refuse(Unavailable::Policy),
                (Some(redirect), _) => redirect,
                (None, Some(Policy { redirects: Redirects { elsewhere: Some(redirect), .. }, .. })) => {
                    Action::Redirect(Arc::clone(redirect))
                }
                (None, _) => action(&backends, &path)?,
            };
            let fields = filters.at(&path)?;
            let rule = Rule {
                filters: match policy {
                    None => fields,
                    Some(policy) => policy::filters(policy, &path, &self.id.name, references, fields),
                },
                forwarding: with_path(&forwarding, &path),
                path,
                conditions: (!conditions.is_empty()).then(|| Box::new(conditions)),
                owner: Arc::clone(&self.owner),
                action,
            };
            self.candidates.push(Candidate { rule, index: (index, at) });
        }
        Ok(())
    }

    /// Resolves the backend of a mirror.
    fn mirror(&mut self, reference: &BackendRef, context: &mut Context<'_, '_>) -> Option<UpstreamKey> {
        let sender = SubrequestSender { purpose: Purpose::Mirror, namespace: Arc::clone(&self.id.name.namespace) };
        let wish = BackendPolicy::default();
        match backend::upstream(self.id, reference, self.protocol, self.certificate, Some(sender), &wish, context) {
            Ok(key) => Some(key),
            Err(flaw) => {
                self.unresolved.get_or_insert(flaw);
                None
            }
        }
    }

    /// Resolves the backends of a rule.
    fn backends<'b>(
        &mut self,
        references: &'b [BackendRef],
        wish: &BackendPolicy,
        context: &mut Context<'_, '_>,
    ) -> Result<Vec<Backend<'b>>, Flaw> {
        let mut flaw = None;
        let mut backends = Vec::new();
        for reference in references {
            let target = backend::upstream(self.id, reference, self.protocol, self.certificate, None, wish, context);
            let target = target.map_err(|found| {
                self.unresolved.get_or_insert(found);
                Unavailable::InvalidReference
            });
            match ReadFilters::of_backend(&reference.filters, &mut |reference| self.mirror(reference, context)) {
                Ok(filters) => backends.push(Backend { weight: reference.weight, target, filters }),
                Err(found) => drop(flaw.get_or_insert(found)),
            }
        }
        flaw.map_or(Ok(backends), Err)
    }
}

/// Returns the action that divides requests among `backends`.
fn action(backends: &[Backend<'_>], path: &PathMatch) -> Result<Action, Flaw> {
    let mut weighted = Vec::new();
    for Backend { weight, target, filters } in backends {
        weighted.push(WeightedBackend { weight: *weight, target: target.clone(), filters: filters.at(path)? });
    }
    let Some(weighted) = WeightedBackends::new(weighted) else {
        return Ok(Action::Refuse(Unavailable::InvalidReference));
    };
    Ok(match weighted.as_slice() {
        [WeightedBackend { weight: _, target, filters }] if filters.is_empty() => match target {
            Ok(key) => Action::Forward(key.clone()),
            Err(why) => Action::Refuse(*why),
        },
        _ => Action::Weighted(weighted.into()),
    })
}
