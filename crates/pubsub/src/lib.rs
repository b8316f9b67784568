//! The Pub/Sub side of walrelay: the Publish call, its failures, and administration
