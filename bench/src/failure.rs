//! The error that ends the program: a sentence with its causes.

pub type Failure = Box<dyn std::error::Error + Send + Sync>;
