//! The emulator over real gRPC and HTTP, with raw clients and official clients.

mod compression;
mod consuming_faults;
mod control;
mod dead_letters;
mod delivery;
mod exactly_once;
mod official_client;
mod publish;
mod python_client;
mod seeking;
mod settings;
mod support;
