//! GatewayClasses of this controller. Gateways are not known here.

use super::{
    report::{ACCEPTED, Flaw, unless},
    supported_features::supported_features,
};
use crate::{
    gateway::{GatewayClass, ObjectReference},
    object_status::{ObjectStatus, StatusBody},
    translate::{Options, text::shorten},
};

/// Returns the reason for which Gateways of the class are not served.
pub(super) fn flaw(class: &GatewayClass) -> Option<Flaw> {
    let ObjectReference { group: _, kind, namespace: _, name } = class.spec.parameters_ref.as_ref()?;
    let message = format!(
        "`parametersRef` names {} `{}`, but this controller has no parameters of classes; remove it",
        shorten(kind.as_str()),
        shorten(name)
    );
    Some(Flaw::new("InvalidParameters", message))
}

/// Returns the status of a class of this controller.
pub(crate) fn status(class: &GatewayClass, options: &Options) -> ObjectStatus {
    ObjectStatus {
        generation: class.metadata.generation.unwrap_or_default(),
        body: StatusBody::GatewayClass {
            conditions: vec![unless(ACCEPTED, flaw(class).as_ref())],
            supported_features: supported_features(options),
        },
    }
}
