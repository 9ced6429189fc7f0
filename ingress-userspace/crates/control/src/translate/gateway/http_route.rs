//! HTTPRoutes.

use std::sync::Arc;

use super::{
    attach::{Attachment, attach, conclude, hostnames},
    backend,
    filters::ReadFilters,
    forwarding,
    matches::{self, ExpressionsLeft},
    report::Flaw,
    route::{Candidate, MadeRoute, RoutePrecedence},
};
use crate::{
    change::ObjectId,
    gateway::{
        BackendRef,
        route::{HttpMatch, HttpRoute, HttpRule},
    },
    object_status::{ObjectStatus, StatusBody},
    translate::{
        Context,
        destination::{Purpose, SubrequestSender},
        features::Globals,
    },
};
use ingress_model::{
    Action, Forwarding, HostPattern, PathMatch, Rule, Unavailable, UpstreamKey, WeightedBackend, WeightedBackends,
};

/// Makes an HTTPRoute; `None` if it refers to no Gateway of this controller.
pub(crate) fn make(
    id: &ObjectId,
    route: &HttpRoute,
    globals: &Globals,
    context: &mut Context<'_, '_>,
) -> Option<MadeRoute> {
    let names = hostnames(&route.spec.hostnames);
    // Without valid hostnames it is attached nowhere, for that reason.
    let reached = names.as_deref().unwrap_or(&[HostPattern::Any]);
    let found = attach(id, &route.spec.parent_refs, reached, context);
    if found.is_empty() {
        return None;
    }
    let mut rules = Rules {
        id,
        owner: id.name.to_string().into(),
        forwarding: &globals.forwarding,
        expressions: ExpressionsLeft::new(),
        unresolved: None,
        candidates: Vec::new(),
    };
    let read = rules.read(&route.spec.rules, context);
    let flaw = names.err().or(read.err());
    let Rules { unresolved, candidates, .. } = rules;
    Some(made(id, route, found, flaw.as_ref(), unresolved.as_ref(), candidates))
}

fn made(
    id: &ObjectId,
    route: &HttpRoute,
    found: Vec<Attachment<'_>>,
    flaw: Option<&Flaw>,
    unresolved: Option<&Flaw>,
    candidates: Vec<Candidate>,
) -> MadeRoute {
    let (attachments, parents) = conclude(found, flaw, unresolved);
    let generation = route.metadata.generation.unwrap_or_default();
    MadeRoute {
        precedence: RoutePrecedence::of(id, &route.metadata),
        attachments,
        candidates,
        status: ObjectStatus { generation, body: StatusBody::Route { parents } }.into(),
    }
}

/// The rules of one route while they are read.
struct Rules<'r> {
    id: &'r ObjectId,
    owner: Arc<str>,
    forwarding: &'r Arc<Forwarding>,
    expressions: ExpressionsLeft,
    /// The flaw of the first backend that cannot be used.
    unresolved: Option<Flaw>,
    candidates: Vec<Candidate>,
}

// === impl Rules ===

impl Rules<'_> {
    /// Reads all rules. Backends of all rules are resolved, even if a rule has a flaw.
    fn read(&mut self, rules: &[HttpRule], context: &mut Context<'_, '_>) -> Result<(), Flaw> {
        let all = [HttpRule::default()];
        let rules = if rules.is_empty() { &all } else { rules };
        let mut flaw = None;
        for (index, rule) in rules.iter().enumerate() {
            if let Err(found) = self.read_rule(index, rule, context) {
                flaw.get_or_insert(found);
            }
        }
        flaw.map_or(Ok(()), Err)
    }

    fn read_rule(&mut self, index: usize, rule: &HttpRule, context: &mut Context<'_, '_>) -> Result<(), Flaw> {
        let HttpRule { name: _, matches, filters, backend_refs, timeouts, retry } = rule;
        let backends = self.backends(backend_refs, context);
        let filters = ReadFilters::of_rule(filters, &mut |reference| self.mirror(reference, context))?;
        let forwarding = forwarding::read(timeouts, retry.as_ref(), self.forwarding)?;
        let backends = backends?;
        let all = [HttpMatch::default()];
        let matches = if matches.is_empty() { &all } else { &**matches };
        for (at, demand) in matches.iter().enumerate() {
            let (path, conditions) = matches::read(demand, &mut self.expressions)?;
            let action = match filters.redirect(&path)? {
                Some(redirect) => redirect,
                None => action(&backends, &path)?,
            };
            let filters = filters.at(&path)?;
            let rule = Rule {
                path,
                conditions: (!conditions.is_empty()).then(|| Box::new(conditions)),
                owner: Arc::clone(&self.owner),
                filters,
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
        match backend::upstream(self.id, reference, None, Some(sender), context) {
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
            let target = backend::upstream(self.id, reference, None, None, context).map_err(|found| {
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

/// A backend of a rule, for matches of any path.
struct Backend<'b> {
    weight: u32,
    target: Result<UpstreamKey, Unavailable>,
    filters: ReadFilters<'b>,
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
