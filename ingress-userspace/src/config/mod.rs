//! Configuration by the operator: [`cli`] and [`inspect`] as typed, [`settings`] as resolved and validated.

pub(crate) mod cli;
pub(crate) mod inspect;
pub(crate) mod settings;
