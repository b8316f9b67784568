//! The program `walrelay`.

use std::process::ExitCode;

fn main() -> ExitCode {
    walrelay::process::main()
}
