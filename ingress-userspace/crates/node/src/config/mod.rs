//! Configuration by the operator: [`cli`] as typed, [`settings`] as resolved and validated.

pub(crate) mod cli;
pub(crate) mod settings;
