//! Rules of HTTPRoutes and GRPCRoutes: filters, backends and the action of each match.

use std::sync::Arc;

use super::{
    attach::{Attachment, by_certificate},
    backend,
    filters::ReadFilters,
    matches::Expressions,
    report::Flaw,
    route::{ByListener, Candidate},
};
use crate::{
    change::{ObjectId, ObjectName},
    gateway::{BackendRef, route::Filter},
    translate::{
        Context,
        destination::{Purpose, SubrequestSender},
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
    pub(super) requests: ByListener<Vec<Candidate>>,
    pub(super) flaw: Option<Flaw>,
    /// The flaw of a backend that cannot be used.
    pub(super) unresolved: Option<Flaw>,
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
    let mut all = ReadRules { requests: ByListener::default(), flaw: None, unresolved: None };
    let mut expressions = Expressions::new();
    for (certificate, listeners) in by_certificate(attachments) {
        expressions.reset();
        let mut rules = Rules::new(id, protocol, certificate.as_ref(), expressions);
        let flaw = read(&mut rules).err();
        let Rules { unresolved, candidates, expressions: known, .. } = rules;
        expressions = known;
        all.flaw = all.flaw.or(flaw);
        all.unresolved = all.unresolved.or(unresolved);
        all.requests.0.push((listeners.into_iter().collect(), candidates));
    }
    all
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

    /// Adds rule number `index` of the route, for each of its matches.
    ///
    /// # Errors
    /// The flaw of a value that is not supported. The backends are resolved all the same.
    pub(super) fn add(
        &mut self,
        index: usize,
        demands: Result<Vec<Demand>, Flaw>,
        filters: &[Filter],
        backend_refs: &[BackendRef],
        forwarding: Result<Arc<Forwarding>, Flaw>,
        context: &mut Context<'_, '_>,
    ) -> Result<(), Flaw> {
        let backends = self.backends(backend_refs, context);
        let filters = ReadFilters::of_rule(filters, &mut |reference| self.mirror(reference, context))?;
        let (backends, demands, forwarding) = (backends?, demands?, forwarding?);
        for (at, (path, conditions)) in demands.into_iter().enumerate() {
            let action = match filters.redirect(&path)? {
                Some(redirect) => redirect,
                None => action(&backends, &path)?,
            };
            let rule = Rule {
                filters: filters.at(&path)?,
                path,
                conditions: (!conditions.is_empty()).then(|| Box::new(conditions)),
                owner: Arc::clone(&self.owner),
                action,
                forwarding: Arc::clone(&forwarding),
            };
            self.candidates.push(Candidate { rule, index: (index, at) });
        }
        Ok(())
    }

    /// Resolves the backend of a mirror.
    fn mirror(&mut self, reference: &BackendRef, context: &mut Context<'_, '_>) -> Option<UpstreamKey> {
        let sender = SubrequestSender { purpose: Purpose::Mirror, namespace: Arc::clone(&self.id.name.namespace) };
        match backend::upstream(self.id, reference, self.protocol, self.certificate, Some(sender), context) {
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
        context: &mut Context<'_, '_>,
    ) -> Result<Vec<Backend<'b>>, Flaw> {
        let mut flaw = None;
        let mut backends = Vec::new();
        for reference in references {
            let target = backend::upstream(self.id, reference, self.protocol, self.certificate, None, context).map_err(
                |found| {
                    self.unresolved.get_or_insert(found);
                    Unavailable::InvalidReference
                },
            );
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
