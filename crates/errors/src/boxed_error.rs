//! An error of a higher crate, whose type the lower crate does not know.

use std::error::Error;
use std::fmt;

use crate::code::Code;
use crate::coded::Coded;

/// Any error with a code.
#[derive(Debug)]
pub struct BoxedError(Box<dyn Coded>);

impl BoxedError {
    /// Boxes an error.
    pub fn new(error: impl Coded) -> Self {
        Self(Box::new(error))
    }

    /// Returns the boxed error if it has this type.
    #[must_use]
    pub fn downcast_ref<E: Coded>(&self) -> Option<&E> {
        let error: &(dyn Error + 'static) = &*self.0;
        error.downcast_ref()
    }
}

impl fmt::Display for BoxedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for BoxedError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

impl Coded for BoxedError {
    fn code(&self) -> Code {
        self.0.code()
    }

    fn fix(&self) -> Option<String> {
        self.0.fix()
    }
}
